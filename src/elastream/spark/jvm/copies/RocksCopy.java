package elastream.copies;

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;

/** A copy on disk, for RocksDB: a database of its own in this executor's local folder. */
final class RocksCopy extends Copy {
    private RocksProvider provider;
    private CopiedRocksDB database;

    RocksCopy(Operator operator, int partition, int rank) {
        super(operator, partition, rank);
    }

    void read(long version) throws Exception {
        provider = new RocksProvider(operator, partition);
        operator.open(provider, partition);
        database = (CopiedRocksDB) provider.rocksDB();
        database.read(version);
    }

    void replay(long version) throws Exception {
        database.replay(version);
        // Spark's own databases are flushed by snapshots; this one has none, and what it has not flushed is in memory.
        if (version % operator.deltasForSnapshot() == 0L) database.flush();
    }

    void measure() {
        if (database == null) return;
        memory = database.getMemoryUsage();
        disk = size(database.localRootDir());
    }

    StateStoreProvider give() throws Exception {
        database.give();
        RocksProvider given = provider;
        provider = null;
        database = null;
        return given;
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
