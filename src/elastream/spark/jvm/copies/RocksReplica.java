package elastream.copies;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.execution.streaming.state.RocksDB;
import org.apache.spark.sql.execution.streaming.state.RocksDBConf;
import org.apache.spark.sql.execution.streaming.state.RocksDBFileMapping;
import org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;

/** A replica on disk, for RocksDB: an own database in this executor's local folder. */
final class RocksReplica extends Replica {
    private RocksDBStateStoreProvider provider;
    private ReplicaRocksDB database;

    RocksReplica(Operator operator, int partition, int rank) {
        super(operator, partition, rank);
    }

    void read(long version) throws Exception {
        final Operator opened = operator;
        final int number = partition;
        provider = new RocksDBStateStoreProvider() {
            public RocksDB createRocksDB(
                String root, RocksDBConf conf, java.io.File local, Configuration hadoop, String called, boolean families,
                boolean ids, int threads, scala.Option forwarder, scala.Option unique) {
                ReplicaRocksDB made =
                    new ReplicaRocksDB(root, conf, local, hadoop, called, families, ids, threads, forwarder, unique);
                made.operator = opened;
                made.partition = number;
                return made;
            }
        };
        operator.open(provider, partition);
        database = (ReplicaRocksDB) provider.rocksDB();
        database.read(version);
    }

    void replay(long version) throws Exception {
        database.replay(version);
        // Snapshots flush Spark's own databases; this one has none, and unflushed changes stay in memory.
        if (version % operator.deltasForSnapshot() == 0L) database.flush();
    }

    void measure() {
        if (database == null) return;
        memory = database.getMemoryUsage();
        disk = size(database.localRootDir());
    }

    StateStoreProvider give() throws Exception {
        database.give();
        StateStoreProvider adopted = provider;
        provider = null;
        database = null;
        return adopted;
    }

    void discard() {
        StateStoreProvider left = provider;
        provider = null;
        database = null;
        if (left != null) left.close();
    }

    private static long size(java.io.File folder) {
        java.io.File[] files = folder.listFiles();
        long bytes = 0L;
        for (int i = 0; files != null && i < files.length; i++)
            bytes += files[i].isDirectory() ? size(files[i]) : files[i].length();
        return bytes;
    }
}

/**
 * Spark's RocksDB of one state partition, which can replay changes that another executor wrote. Spark's own reloads a newer
 * version from its last snapshot.
 *
 * When Spark takes it over, it forgets which checkpoint files hold which tables: their writer may have deleted them since,
 * and a snapshot that referred to them would be unreadable. So its first snapshot writes all tables, as any partition's
 * first does.
 */
final class ReplicaRocksDB extends RocksDB {
    Operator operator;
    int partition;
    private volatile boolean handedOver = false;

    ReplicaRocksDB(
        String root, RocksDBConf conf, java.io.File local, Configuration hadoop, String called, boolean families,
        boolean ids, int number, scala.Option forwarder, scala.Option unique) {
        super(root, conf, local, hadoop, called, families, ids, number, forwarder, unique);
    }

    void read(long version) {
        super.load(version, scala.Option.empty(), true, false);
    }

    /** Replay the changes of one version; on failure the content is lost. */
    void replay(long version) throws Exception {
        Object changes = java.lang.reflect.Array.newInstance(scala.Tuple2.class, 1);
        java.lang.reflect.Array.set(changes, 0, new scala.Tuple2(Long.valueOf(version), scala.Option.empty()));
        SparkInternals.call(SparkInternals.REPLAY, this, new Object[] {changes});
        loadedVersion_$eq(version);
        Object keys = SparkInternals.call(SparkInternals.KEYS, this, new Object[0]);
        SparkInternals.call(SparkInternals.KEYS_LOADED, this, new Object[] {keys});
        Object internal = SparkInternals.call(SparkInternals.INTERNAL, this, new Object[0]);
        SparkInternals.call(SparkInternals.INTERNAL_LOADED, this, new Object[] {internal});
        fileManager().setMaxSeenVersion(version);
    }

    /** Flush memory to local files, and read the age of the checkpoint's newest snapshot. */
    void flush() throws Exception {
        ((org.rocksdb.RocksDB) SparkInternals.call(SparkInternals.DB, this, new Object[0]))
            .flush((org.rocksdb.FlushOptions) SparkInternals.call(SparkInternals.FLUSHING, this, new Object[0]));
        long newest = fileManager().getLatestSnapshotVersion(loadedVersion());
        SparkInternals.call(SparkInternals.LAST_SNAPSHOT, this, new Object[] {Long.valueOf(newest)});
    }

    /** Prepare for Spark, which owns it from now on. */
    void give() throws Exception {
        ((RocksDBFileMapping) SparkInternals.call(SparkInternals.MAPPING, this, new Object[0])).clear();
        ((java.util.Map) SparkInternals.call(SparkInternals.FILES, fileManager(), new Object[0])).clear();
        handedOver = true;
    }

    public RocksDB load(long version, scala.Option id, boolean reading, boolean empty) {
        if (!handedOver) return super.load(version, id, reading, empty);
        handedOver = false;
        long began = System.nanoTime(), from = loadedVersion();
        int files = 0;
        if (id.isEmpty() && !empty && from >= 0L && from < version) {
            try {
                while (loadedVersion() < version) {
                    replay(loadedVersion() + 1L);
                    files++;
                }
            } catch (Throwable problem) {
                loadedVersion_$eq(-1L); // nothing valid is loaded: Spark reads the checkpoint
            }
        }
        boolean current = loadedVersion() == version;
        RocksDB loaded = super.load(version, id, reading, empty);
        Follower.opened(operator, partition, from, version, current ? files : read(), System.nanoTime() - began);
        return loaded;
    }

    /** Files of the checkpoint that the last load read, if known. */
    private int read() {
        int files = (int) fileManager().latestLoadCheckpointMetrics().filesCopied() + 1;
        try {
            scala.collection.mutable.HashMap metrics = (scala.collection.mutable.HashMap) SparkInternals.call(
                SparkInternals.REPLAYED, this, new Object[0]);
            scala.Option replayed = metrics.get("numReplayChangeLogFiles");
            return replayed.isDefined() ? files + ((Number) replayed.get()).intValue() : files;
        } catch (Exception unknown) {
            return files;
        }
    }
}
