package elastream.copies;

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId;

/**
 * A replica of one state partition, unknown to Spark. Its states and transitions, all in the follower's thread except the
 * task's:
 *
 *   from       to         when
 *   WANTED     LOADING    it is its turn, there is room, and a batch was committed
 *   LOADING    FOLLOWING  the newest committed state was read
 *   LOADING    WANTED     a file was missing (maintenance deletes old ones) or broken: retry, each time later
 *   FOLLOWING  FOLLOWING  one more committed batch was replayed
 *   FOLLOWING  WANTED     replaying failed: the content is discarded
 *   FOLLOWING  NO_ROOM    replicas exceed their memory, and this is the coldest
 *   NO_ROOM    LOADING    there is room again
 *   FOLLOWING  TAKEN      a task that starts here opens the partition (the task's thread)
 *   any but TAKEN  DROPPED  not requested any more, its run is over, or Spark opened the partition here by itself
 *
 * TAKEN and DROPPED are final. While LOADING, only the follower has the content; while FOLLOWING, this object's lock guards
 * it; once TAKEN, it is Spark's. So no content changes under a task, and none is handed over twice. Content comes from
 * committed batches of its own run: a failed attempt's change is rewritten before its batch is committed, and not read
 * before.
 */
abstract class Replica implements Comparable {
    static final int WANTED = 0, LOADING = 1, FOLLOWING = 2, TAKEN = 3, NO_ROOM = 4, DROPPED = 5;
    static final String[] NAMES = {"wanted", "loading", "following", "taken", "no room", "dropped"};
    /** Longest delay (ms) before a failed replica is retried. */
    static final long MAX_RETRY_DELAY_MS = 60000L;

    final Operator operator;
    final int partition;
    final StateStoreProviderId id;
    /** Position among the successors: 0 takes over first. */
    volatile int rank;
    private volatile int state = WANTED;
    /** Committed batches in the content; -1 for none. */
    volatile long version = -1L;
    /** Committed batches of the run. */
    volatile long committed = -1L;
    /** Bytes of memory and of disk, now or last. */
    volatile long memory = 0L, disk = 0L;
    /** Reason for its absence. */
    volatile String why = "";
    /** Nanoseconds to replay a batch, a moving mean: what changes little is cold. */
    double heat = 0.0;
    long notBefore = 0L;
    private int failures = 0;

    Replica(Operator operator, int partition, int rank) {
        this.operator = operator;
        this.partition = partition;
        this.rank = rank;
        this.id = operator.id(partition);
    }

    /** Warmer replicas come first: by rank, then by how much changes. */
    public int compareTo(Object with) {
        Replica other = (Replica) with;
        return rank != other.rank ? Integer.compare(rank, other.rank) : Double.compare(other.heat, heat);
    }

    /** Read the state of `version` into memory or onto disk. */
    abstract void read(long version) throws Exception;

    /** Apply what the batch that made `version` changed. */
    abstract void replay(long version) throws Exception;

    /** Set `memory` and `disk`. */
    abstract void measure() throws Exception;

    /** Return the provider for Spark to use from now on. */
    abstract StateStoreProvider give() throws Exception;

    /** Discard the content. */
    abstract void discard();

    int state() {
        return state;
    }

    boolean over() {
        return state == TAKEN || state == DROPPED;
    }

    private synchronized boolean step(int from, int to) {
        if (state != from) return false;
        state = to;
        return true;
    }

    /** Load the state after `committed` batches. */
    void load(long committed) {
        if (!step(WANTED, LOADING) && !step(NO_ROOM, LOADING)) return;
        try {
            read(committed);
            version = committed;
            measure();
            failures = 0;
            why = "";
            step(LOADING, FOLLOWING);
        } catch (Throwable problem) {
            failed(LOADING, problem);
        }
    }

    /** Replay changes up to `committed` batches. */
    void follow(long committed) {
        while (version < committed) {
            synchronized (this) {
                if (state != FOLLOWING) return;
                long began = System.nanoTime();
                try {
                    replay(version + 1L);
                    version = version + 1L;
                } catch (Throwable problem) {
                    failed(FOLLOWING, problem);
                    return;
                }
                heat = 0.8 * heat + 0.2 * (System.nanoTime() - began);
            }
        }
    }

    private synchronized void failed(int from, Throwable problem) {
        if (!step(from, WANTED)) return;
        empty();
        failures++;
        notBefore = System.currentTimeMillis() + Math.min(MAX_RETRY_DELAY_MS, 500L << Math.min(failures, 10));
        why = problem.toString();
    }

    /** Hand the content to a task; null if it is of no use. Waits while one batch is replayed. */
    StateStoreProvider take() {
        if (state != FOLLOWING) return null;
        synchronized (this) {
            if (!step(FOLLOWING, TAKEN)) return null;
            try {
                return give();
            } catch (Throwable problem) {
                why = problem.toString();
                empty();
                return null;
            }
        }
    }

    /** Discard the content to make room. */
    synchronized void leave(String reason) {
        if (!step(FOLLOWING, NO_ROOM)) return;
        empty();
        why = reason;
    }

    /** Drop it for good. */
    synchronized void drop() {
        if (over()) return;
        state = DROPPED;
        empty();
    }

    private void empty() {
        version = -1L;
        try {
            discard();
        } catch (Throwable problem) {
            why = problem.toString();
        }
    }
}
