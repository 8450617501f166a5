package elastream.copies;

import java.util.Map;
import org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreMap;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;

/** A copy in the heap, for Spark's store in memory: its map, and the provider that reads files into it. */
final class MapCopy extends Copy {
    private static final int SAMPLE = 200;
    /** Bytes beside the content of key and value: two rows (48 each), two arrays (16 each), a wrapper (16), an entry of the map
     *  with its share of the table (56). */
    private static final int OBJECTS = 200;

    private MapProvider provider;
    private HDFSBackedStateStoreMap map;

    MapCopy(Operator operator, int partition, int rank) {
        super(operator, partition, rank);
    }

    void read(long version) throws Exception {
        provider = new MapProvider(operator, partition);
        operator.open(provider, partition);
        map = (HDFSBackedStateStoreMap) Inside.call(Inside.LOAD_MAP, provider, new Object[] {Long.valueOf(version)});
    }

    void replay(long version) throws Exception {
        Inside.call(Inside.UPDATE_MAP, provider, new Object[] {Long.valueOf(version), map});
    }

    void measure() {
        HDFSBackedStateStoreMap measured = map;
        if (measured == null) return;
        long bytes = 0L;
        int seen = 0;
        for (scala.collection.Iterator each = measured.iterator(); seen < SAMPLE && each.hasNext(); seen++) {
            org.apache.spark.sql.execution.streaming.state.UnsafeRowPair pair =
                (org.apache.spark.sql.execution.streaming.state.UnsafeRowPair) each.next();
            bytes += pair.key().getSizeInBytes() + pair.value().getSizeInBytes() + OBJECTS;
        }
        memory = seen == 0 ? 0L : (long) ((double) bytes / seen * measured.size());
    }

    StateStoreProvider give() throws Exception {
        // What it read before is the same map under an older number.
        synchronized (provider) {
            Map maps = (Map) Inside.call(Inside.MAPS, provider, new Object[0]);
            maps.clear();
            maps.put(Long.valueOf(version), map);
        }
        provider.given(version);
        MapProvider given = provider;
        provider = null;
        map = null;
        return given;
    }

    void discard() {
        MapProvider left = provider;
        provider = null;
        map = null;
        if (left != null) left.close();
    }
}
