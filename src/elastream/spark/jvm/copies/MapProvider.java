package elastream.copies;

import org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.ReadStateStore;
import org.apache.spark.sql.execution.streaming.state.StateStore;

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
