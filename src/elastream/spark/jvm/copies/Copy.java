package elastream.copies;

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId;

/**
 * A copy of one state partition, which Spark does not know of, and its life. Nothing sets a state except by this table:
 *
 *   from       to         when                                                                   in which thread
 *   WANTED     LOADING    its turn has come, there is room, and a batch was committed            the follower's
 *   LOADING    FOLLOWING  it was read, as the newest committed batch left it                     the follower's
 *   LOADING    WANTED     a file was missing (maintenance deletes old ones) or broken: again, each time later    the follower's
 *   FOLLOWING  FOLLOWING  what one more committed batch changed was replayed                     the follower's
 *   FOLLOWING  WANTED     replaying failed half-way: what there is of it is thrown away          the follower's
 *   FOLLOWING  NO_ROOM    copies take more than they may, and of all it is the coldest           the follower's
 *   NO_ROOM    LOADING    there is room again                                                    the follower's
 *   FOLLOWING  TAKEN      a task that is about to run here opens the partition                   the task's
 *   all but TAKEN  DROPPED  it is no longer wanted, its run is over, or Spark opened the partition here by itself    the follower's
 *
 * TAKEN and DROPPED are final. While it is LOADING only the follower knows what there is; while it is FOLLOWING it is touched
 * under the lock of this object; once it is TAKEN it is Spark's alone. So no content can change under a task, and none be
 * handed over twice. Content is made of committed batches of its own run only: a change that a failed attempt wrote is written
 * anew before its batch is committed, and is not read before that.
 */
abstract class Copy {
    static final int WANTED = 0, LOADING = 1, FOLLOWING = 2, TAKEN = 3, NO_ROOM = 4, DROPPED = 5;
    static final String[] NAMES = {"wanted", "loading", "following", "taken", "no room", "dropped"};
    /** Milliseconds after which a copy that failed is tried again at the latest. */
    static final long LONGEST = 60000L;

    final Operator operator;
    final int partition;
    final StateStoreProviderId id;
    /** Place in the order of successors: 0 takes over first. */
    volatile int rank;
    private volatile int state = WANTED;
    /** Committed batches that it holds; -1 for none. */
    volatile long version = -1L;
    /** Committed batches that there are. */
    volatile long committed = -1L;
    /** Bytes of memory and of disk that it takes, or took last. */
    volatile long memory = 0L, disk = 0L;
    /** Why it is not there. */
    volatile String why = "";
    /** Nanoseconds that replaying a batch takes, a moving mean: what changes little is cold. */
    double heat = 0.0;
    long notBefore = 0L;
    private int failures = 0;

    Copy(Operator operator, int partition, int rank) {
        this.operator = operator;
        this.partition = partition;
        this.rank = rank;
        this.id = operator.id(partition);
    }

    /** Read the state of `version` into memory or onto disk. */
    abstract void read(long version) throws Exception;

    /** Apply what the batch that made `version` changed. */
    abstract void replay(long version) throws Exception;

    /** Set `memory` and `disk`. */
    abstract void measure() throws Exception;

    /** What Spark is to have open from now on. */
    abstract StateStoreProvider give() throws Exception;

    /** Throw away what there is of it. */
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

    /** Load what the newest committed batch left, `committed` being their number. */
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

    /** Replay what committed batches changed since. */
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
        notBefore = System.currentTimeMillis() + Math.min(LONGEST, 500L << Math.min(failures, 10));
        why = problem.toString();
    }

    /** What a task is to find open; null where there is nothing that it could use. It waits while one batch is replayed. */
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

    /** Make room. */
    synchronized void leave(String reason) {
        if (!step(FOLLOWING, NO_ROOM)) return;
        empty();
        why = reason;
    }

    /** It is not wanted any more. */
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
