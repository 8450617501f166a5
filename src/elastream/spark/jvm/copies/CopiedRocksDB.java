package elastream.copies;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.execution.streaming.state.RocksDB;
import org.apache.spark.sql.execution.streaming.state.RocksDBConf;
import org.apache.spark.sql.execution.streaming.state.RocksDBFileMapping;

/**
 * Spark's RocksDB of one state partition, which takes in changes that another executor wrote. Spark's own loads a newer version
 * from its last snapshot anew.
 *
 * Which files of the checkpoint hold which of its tables it forgets when it is given away: the executor that wrote them may
 * have deleted them since, as none of its own snapshots needed them, and a snapshot that referred to them could not be read.
 * So its first snapshot writes all tables, as the first one of any partition does.
 */
final class CopiedRocksDB extends RocksDB {
    private Operator operator;
    private int partition;
    private volatile boolean given = false;

    CopiedRocksDB(
        String root, RocksDBConf conf, java.io.File local, Configuration hadoop, String called, boolean families,
        boolean ids, int number, scala.Option forwarder, scala.Option unique) {
        super(root, conf, local, hadoop, called, families, ids, number, forwarder, unique);
    }

    void of(Operator operator, int partition) {
        this.operator = operator;
        this.partition = partition;
    }

    void read(long version) {
        super.load(version, scala.Option.empty(), true, false);
    }

    /** Replay the changes of one version; what they are applied to is lost where it fails. */
    void replay(long version) throws Exception {
        Object changes = java.lang.reflect.Array.newInstance(scala.Tuple2.class, 1);
        java.lang.reflect.Array.set(changes, 0, new scala.Tuple2(Long.valueOf(version), scala.Option.empty()));
        Inside.call(Inside.REPLAY, this, new Object[] {changes});
        loadedVersion_$eq(version);
        Inside.call(Inside.KEYS_LOADED, this, new Object[] {Inside.call(Inside.KEYS, this, new Object[0])});
        Inside.call(Inside.INTERNAL_LOADED, this, new Object[] {Inside.call(Inside.INTERNAL, this, new Object[0])});
        fileManager().setMaxSeenVersion(version);
    }

    /** Write what is in memory to its local files, and learn how old the newest snapshot in the checkpoint is. */
    void flush() throws Exception {
        ((org.rocksdb.RocksDB) Inside.call(Inside.DB, this, new Object[0]))
            .flush((org.rocksdb.FlushOptions) Inside.call(Inside.FLUSHING, this, new Object[0]));
        long newest = fileManager().getLatestSnapshotVersion(loadedVersion());
        Inside.call(Inside.LAST_SNAPSHOT, this, new Object[] {Long.valueOf(newest)});
    }

    /** From now on it is Spark's. */
    void give() throws Exception {
        ((RocksDBFileMapping) Inside.call(Inside.MAPPING, this, new Object[0])).clear();
        ((java.util.Map) Inside.call(Inside.FILES, fileManager(), new Object[0])).clear();
        given = true;
    }

    public RocksDB load(long version, scala.Option id, boolean reading, boolean empty) {
        if (!given) return super.load(version, id, reading, empty);
        given = false;
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

    /** Files of the checkpoint that the last load read, as far as it says. */
    private int read() {
        int files = (int) fileManager().latestLoadCheckpointMetrics().filesCopied() + 1;
        try {
            scala.collection.mutable.HashMap said = (scala.collection.mutable.HashMap) Inside.call(
                Inside.REPLAYED, this, new Object[0]);
            scala.Option replayed = said.get("numReplayChangeLogFiles");
            return replayed.isDefined() ? files + ((Number) replayed.get()).intValue() : files;
        } catch (Exception unknown) {
            return files;
        }
    }
}
