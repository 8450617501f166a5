package elastream.copies;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.execution.streaming.state.BaseStateStoreRDD;
import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.RocksDBConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.SerializableConfiguration;

/**
 * One store of one stateful operator in one run of a query, with all that opening it needs. A replica serves one run only:
 * a checkpoint may change between runs (reset, deleted, written by others).
 */
final class Operator implements java.io.Serializable {
    static final String STATE = "org.apache.spark.sql.execution.streaming.state.";
    static final String MAPS = STATE + "HDFSBackedStateStoreProvider", ROCKS = STATE + "RocksDBStateStoreProvider";

    final String run, root, store;
    final long number;
    final int partitions;
    private final StructType key, value;
    private final KeyStateEncoderSpec encoder;
    private final boolean families, many;
    private final StateStoreConf conf;
    private final SerializableConfiguration hadoop;
    private final scala.Option schemas;

    Operator(
        String run, String root, long number, int partitions, StructType key, StructType value, KeyStateEncoderSpec encoder,
        boolean families, boolean many, StateStoreConf conf, Configuration hadoop, scala.Option schemas) {
        this.run = run;
        this.root = root;
        this.number = number;
        this.store = "default";
        this.partitions = partitions;
        this.key = key;
        this.value = value;
        this.encoder = encoder;
        this.families = families;
        this.many = many;
        this.conf = conf;
        this.hadoop = new SerializableConfiguration(hadoop);
        this.schemas = schemas;
    }

    /**
     * Return the store that `rdd` (Spark's StateStoreRDD) opens. IllegalArgumentException with a sentence if it cannot be
     * replicated.
     */
    static Operator of(Object rdd, int partitions) throws Exception {
        BaseStateStoreRDD opens = (BaseStateStoreRDD) rdd;
        SerializableConfiguration hadoop = (SerializableConfiguration) opens.hadoopConfBroadcast().value();
        Operator made = new Operator(
            SparkInternals.field(rdd, "queryRunId").toString(),
            (String) SparkInternals.field(rdd, "checkpointLocation"),
            ((Long) SparkInternals.field(rdd, "operatorId")).longValue(),
            partitions,
            (StructType) SparkInternals.field(rdd, "keySchema"),
            (StructType) SparkInternals.field(rdd, "valueSchema"),
            (KeyStateEncoderSpec) SparkInternals.field(rdd, "keyStateEncoderSpec"),
            ((Boolean) SparkInternals.field(rdd, "useColumnFamilies")).booleanValue(),
            ((Boolean) SparkInternals.field(rdd, "useMultipleValuesPerKey")).booleanValue(),
            opens.storeConf(),
            new Configuration(hadoop.value()),
            (scala.Option) SparkInternals.field(rdd, "stateSchemaBroadcast"));
        made.checkSupported();
        return made;
    }

    private void checkSupported() {
        if (conf.enableStateStoreCheckpointIds())
            throw new IllegalArgumentException(
                "its checkpoints name versions of state by unique ids (spark.sql.streaming.stateStore.checkpointFormatVersion)");
        if (conf.unloadOnCommit())
            throw new IllegalArgumentException("its executors drop state after each batch (unloadOnCommit)");
        if (!rocks() && !MAPS.equals(conf.providerClass()))
            throw new IllegalArgumentException("its state is kept by " + conf.providerClass());
        if (rocks() && !RocksDBConf.apply(conf).enableChangelogCheckpointing())
            throw new IllegalArgumentException("its checkpoints hold whole states and no changes: "
                + "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled is off");
    }

    /** Name in messages, unique among all runs. */
    String name() {
        return run + "/" + number + "/" + store;
    }

    boolean rocks() {
        return ROCKS.equals(conf.providerClass());
    }

    int deltasForSnapshot() {
        return conf.minDeltasForSnapshot();
    }

    StateStoreProviderId id(int partition) {
        return new StateStoreProviderId(new StateStoreId(root, number, partition, store), java.util.UUID.fromString(run));
    }

    org.apache.hadoop.fs.Path folder(int partition) {
        return id(partition).storeId().storeCheckpointLocation();
    }

    Configuration hadoop() {
        return hadoop.value();
    }

    /** Initialise `provider` as Spark does before a task opens `partition`. */
    void open(StateStoreProvider provider, int partition) {
        Configuration mine = new Configuration(hadoop.value());
        mine.set("sql.streaming.runId", run);
        provider.init(id(partition).storeId(), key, value, encoder, families, conf, mine, many, schemas);
    }

    byte[] bytes() throws Exception {
        java.io.ByteArrayOutputStream out = new java.io.ByteArrayOutputStream();
        java.io.ObjectOutputStream writer = new java.io.ObjectOutputStream(out);
        writer.writeObject(this);
        writer.close();
        return out.toByteArray();
    }

    static Operator of(byte[] bytes) throws Exception {
        return (Operator) new Reader(bytes).readObject();
    }

    /** Reads with this jar's class loader, not that of the thread that receives messages. */
    private static final class Reader extends java.io.ObjectInputStream {
        Reader(byte[] bytes) throws java.io.IOException {
            super(new java.io.ByteArrayInputStream(bytes));
        }

        protected Class resolveClass(java.io.ObjectStreamClass described) throws java.io.IOException, ClassNotFoundException {
            try {
                return Class.forName(described.getName(), false, Operator.class.getClassLoader());
            } catch (ClassNotFoundException primitive) {
                return super.resolveClass(described);
            }
        }
    }
}
