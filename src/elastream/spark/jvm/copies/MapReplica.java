package elastream.copies;

import java.util.Map;
import org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreMap;
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
