package elastream.copies;

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;

/** A replica on disk, for RocksDB: an own database in this executor's local folder. */
final class RocksReplica extends Replica {
    private RocksProvider provider;
    private ReplicaRocksDB database;

    RocksReplica(Operator operator, int partition, int rank) {
        super(operator, partition, rank);
    }

    void read(long version) throws Exception {
        provider = new RocksProvider(operator, partition);
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
        RocksProvider adopted = provider;
        provider = null;
        database = null;
        return adopted;
    }

    void discard() {
        RocksProvider left = provider;
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
