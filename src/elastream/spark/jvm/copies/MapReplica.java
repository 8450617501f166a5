package elastream.copies;

import java.util.Map;
import org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreMap;
import org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.ReadStateStore;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;

/** A replica in the heap, for Spark's store in memory: its map, and the provider that reads files into it. */
final class MapReplica extends Replica {
    private static final int SAMPLE = 200;
    /**
     * Bytes beside the content of key and value: two rows (48 each), two arrays (16 each), a wrapper (16), a map entry with
     * its share of the table (56).
     */
    private static final int OBJECTS = 200;

    private MapProvider provider;
    private HDFSBackedStateStoreMap map;

    MapReplica(Operator operator, int partition, int rank) {
        super(operator, partition, rank);
    }

    void read(long version) throws Exception {
        provider = new MapProvider(operator, partition);
        operator.open(provider, partition);
        map = (HDFSBackedStateStoreMap) SparkInternals.call(SparkInternals.LOAD_MAP, provider, new Object[] {Long.valueOf(version)});
    }

    void replay(long version) throws Exception {
        SparkInternals.call(SparkInternals.UPDATE_MAP, provider, new Object[] {Long.valueOf(version), map});
    }

    void measure() {
        HDFSBackedStateStoreMap measured = map;
        if (measured == null) return;
        long bytes = 0L;
        int sampled = 0;
        for (scala.collection.Iterator each = measured.iterator(); sampled < SAMPLE && each.hasNext(); sampled++) {
            org.apache.spark.sql.execution.streaming.state.UnsafeRowPair pair =
                (org.apache.spark.sql.execution.streaming.state.UnsafeRowPair) each.next();
            bytes += pair.key().getSizeInBytes() + pair.value().getSizeInBytes() + OBJECTS;
        }
        memory = sampled == 0 ? 0L : (long) ((double) bytes / sampled * measured.size());
    }

    StateStoreProvider give() throws Exception {
        // Older versions refer to the same map.
        synchronized (provider) {
            Map maps = (Map) SparkInternals.call(SparkInternals.MAPS, provider, new Object[0]);
            maps.clear();
            maps.put(Long.valueOf(version), map);
        }
        provider.adopt(version);
        MapProvider adopted = provider;
        provider = null;
        map = null;
        return adopted;
    }

    void discard() {
        MapProvider left = provider;
        provider = null;
        map = null;
        if (left != null) left.close();
    }
}

/** Spark's provider of state in memory, which counts files read and reports its first opening by a task. */
final class MapProvider extends HDFSBackedStateStoreProvider {
    private final Operator operator;
    private final int partition;
    private volatile int files = 0;
    private volatile long adoptedVersion = -1L;

    MapProvider(Operator operator, int partition) {
        this.operator = operator;
        this.partition = partition;
    }

    /** Belong to Spark from now on, with the state of `version`. */
    void adopt(long version) {
        files = 0;
        adoptedVersion = version;
    }

    public java.io.DataInputStream decompressStream(java.io.DataInputStream input) {
        files++;
        return super.decompressStream(input);
    }

    public StateStore getStore(long version, scala.Option id, boolean snapshot, boolean empty) {
        long began = System.nanoTime();
        StateStore store = super.getStore(version, id, snapshot, empty);
        tell(version, began);
        return store;
    }

    public ReadStateStore getReadStore(long version, scala.Option id) {
        long began = System.nanoTime();
        ReadStateStore store = super.getReadStore(version, id);
        tell(version, began);
        return store;
    }

    private void tell(long version, long began) {
        long from = adoptedVersion;
        if (from < 0L) return;
        adoptedVersion = -1L;
        Follower.opened(operator, partition, from, version, files, System.nanoTime() - began);
    }
}
