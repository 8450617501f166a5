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
 * One store of one stateful operator in one run of a query, with all that opening it needs. A copy serves no other run: what
 * became of a checkpoint between two runs (set back, deleted, written by others) need not be asked.
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

    /** The store that `rdd` (Spark's StateStoreRDD) opens. Throws IllegalArgumentException with a sentence for one that cannot be copied. */
    Operator(Object rdd, int partitions) throws Exception {
        BaseStateStoreRDD opens = (BaseStateStoreRDD) rdd;
        this.partitions = partitions;
        this.root = (String) Inside.field(rdd, "checkpointLocation");
        this.run = Inside.field(rdd, "queryRunId").toString();
        this.number = ((Long) Inside.field(rdd, "operatorId")).longValue();
        this.store = "default";
        this.key = (StructType) Inside.field(rdd, "keySchema");
        this.value = (StructType) Inside.field(rdd, "valueSchema");
        this.encoder = (KeyStateEncoderSpec) Inside.field(rdd, "keyStateEncoderSpec");
        this.families = ((Boolean) Inside.field(rdd, "useColumnFamilies")).booleanValue();
        this.many = ((Boolean) Inside.field(rdd, "useMultipleValuesPerKey")).booleanValue();
        this.schemas = (scala.Option) Inside.field(rdd, "stateSchemaBroadcast");
        this.conf = opens.storeConf();
        this.hadoop = new SerializableConfiguration(new Configuration(
            ((SerializableConfiguration) opens.hadoopConfBroadcast().value()).value()));
        if (this.conf.enableStateStoreCheckpointIds())
            throw new IllegalArgumentException("its checkpoints name versions of state by unique ids (state store checkpoint format 2)");
        if (this.conf.unloadOnCommit())
            throw new IllegalArgumentException("its executors drop state after each batch (spark.sql.streaming.stateStore.unloadOnCommit)");
        if (!rocks() && !MAPS.equals(this.conf.providerClass()))
            throw new IllegalArgumentException("its state is kept by " + this.conf.providerClass());
        if (rocks() && !RocksDBConf.apply(this.conf).enableChangelogCheckpointing())
            throw new IllegalArgumentException("its checkpoints hold no changes, only whole states"
                + " (spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled is off)");
    }

    /** Its name in messages: unique among all runs. */
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

    /** Reads with the class loader of this jar, which is not that of the thread that receives messages. */
    private static final class Reader extends java.io.ObjectInputStream {
        Reader(byte[] bytes) throws java.io.IOException {
            super(new java.io.ByteArrayInputStream(bytes));
        }

        protected Class resolveClass(java.io.ObjectStreamClass wanted) throws java.io.IOException, ClassNotFoundException {
            try {
                return Class.forName(wanted.getName(), false, Operator.class.getClassLoader());
            } catch (ClassNotFoundException primitive) {
                return super.resolveClass(wanted);
            }
        }
    }
}
