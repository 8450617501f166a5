package elastream.copies;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskFailedReason;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorRef;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;

/**
 * Keeps the replicas of one executor, in one thread: requests from the driver which to keep, reads committed batches from
 * the checkpoint, and reports. Takes no task slot, and reports nothing to Spark's coordinator.
 *
 * A task that starts here takes the replica of its partition, in its own thread and before it opens anything, if the
 * coordinator has that partition here. Spark then finds the store open, as if it had loaded it. So checkpoints name Spark's
 * own provider classes, and sessions without replicas can read them.
 */
public final class Follower implements ExecutorPlugin, Runnable {
    /** Milliseconds between looks for committed batches, and between reports to the driver. */
    private static final long ROUND_MS = 200L, REPORT_MS = 400L;
    /** Milliseconds that work waits for running tasks: it is best done between batches. */
    private static final long TASK_WAIT_MS = 300L;
    /** Milliseconds of a round after which no further replica is loaded. */
    private static final long LOAD_LIMIT_MS = 1000L;
    /** Milliseconds between measurements of memory. */
    private static final long MEASURE_MS = 2000L;
    /** Share of the heap for replicas; expected memory of a replica, by the size of its files. */
    private static final double HEAP_SHARE = 0.3, FILE_GROWTH = 8.0;
    /** A job that loads state ahead names the run whose partitions its tasks open. */
    private static final String OPENS = "elastream.opens";

    private static final org.slf4j.Logger LOG = org.slf4j.LoggerFactory.getLogger("elastream.copies");
    private static final ConcurrentLinkedQueue OPENED = new ConcurrentLinkedQueue();

    private final Map operators = new HashMap();
    private final Map commits = new HashMap();
    private final ConcurrentHashMap replicas = new ConcurrentHashMap();
    private final AtomicInteger running = new AtomicInteger();
    private Map requested = new HashMap();
    private long table = -1L, reportedAt = 0L, measuredAt = 0L, budget;
    private volatile PluginContext context;
    private volatile boolean closing = false;
    private volatile String fault = "", taskFault = "";
    private volatile StateStoreCoordinatorRef coordinator;
    private String countFault = "";
    private Thread thread;

    public void init(PluginContext context, Map settings) {
        try {
            this.context = context;
            double share = context.conf().getDouble("spark.elastream.copies.share", HEAP_SHARE);
            this.budget = (long) (share * Runtime.getRuntime().maxMemory());
            thread = new Thread(this, "elastream-copies");
            thread.setDaemon(true);
            thread.setPriority(Thread.MIN_PRIORITY);
            thread.start();
        } catch (Throwable problem) {
            fault = problem.toString(); // an executor without replicas is better than none
        }
    }

    public void shutdown() {
        closing = true;
        if (thread != null) thread.interrupt();
    }

    // -- in threads of tasks

    public void onTaskStart() {
        running.incrementAndGet();
        try {
            TaskContext task = TaskContext.get();
            if (replicas.isEmpty() || task == null) return;
            String opens = task.getLocalProperty(OPENS);
            String run = opens != null ? opens : task.getLocalProperty("spark.jobGroup.id");
            if (run == null) return;
            for (java.util.Iterator each = replicas.values().iterator(); each.hasNext();) {
                Replica replica = (Replica) each.next();
                if (replica.partition == task.partitionId() && replica.state() == Replica.FOLLOWING
                    && replica.operator.run.equals(run) && replica.operator.partitions == task.numPartitions() && (opens != null || isHere(replica)))
                    hand(replica);
            }
        } catch (Throwable problem) {
            taskFault = problem.toString(); // the task opens the checkpoint, as without replicas
            LOG.warn("a copy was not handed over", problem);
        }
    }

    public void onTaskSucceeded() {
        if (running.decrementAndGet() < 0) running.set(0); // some tasks fail before they begin
    }

    public void onTaskFailed(TaskFailedReason reason) {
        onTaskSucceeded();
    }

    /** Return true if Spark's coordinator has the partition here: another stage may have a task of the same number. */
    private boolean isHere(Replica replica) {
        if (coordinator == null) coordinator = StateStoreCoordinatorRef.forExecutor(SparkEnv.get());
        return coordinator.verifyIfInstanceActive(replica.id, context.executorID());
    }

    private void hand(Replica replica) throws Exception {
        if (SparkInternals.isLoaded(replica.id)) return;
        StateStoreProvider provider = replica.take();
        boolean handed = provider != null && SparkInternals.hand(replica.id, provider);
        LOG.info("copy of " + replica.id + (handed ? " handed over" : " not handed over: " + replica.why));
        if (provider != null && !handed) provider.close();
    }

    /** Note that a task opened a replica with `from` batches, which needed `version`, and read `files`. */
    static void opened(Operator operator, int partition, long from, long version, int files, long nanoseconds) {
        OPENED.add(operator.name() + "\t" + partition + "\t" + from + "\t" + version + "\t" + files + "\t" + nanoseconds / 1000000.0);
    }

    // -- in the follower's thread

    public void run() {
        try {
            Class.forName("elastream.copies.SparkInternals", true, Follower.class.getClassLoader());
        } catch (Throwable missing) { // reported at once, not when the first replica is requested
            Throwable cause = missing.getCause();
            taskFault = cause == null ? missing.toString() : cause.toString();
        }
        while (!closing) {
            try {
                fault = round();
            } catch (Throwable problem) {
                if (!closing) fault = problem.toString();
            }
            try {
                Thread.sleep(ROUND_MS);
            } catch (InterruptedException woken) {
                continue;
            }
        }
        for (java.util.Iterator each = replicas.values().iterator(); each.hasNext();) ((Replica) each.next()).drop();
    }

    /** Make one round; return what failed, or an empty string. */
    private String round() throws Exception {
        long now = System.currentTimeMillis();
        if (now - reportedAt >= REPORT_MS) {
            reportedAt = now;
            exchange();
        }
        if (requested.isEmpty() && replicas.isEmpty()) return "";
        reconcile();
        Replica[] all = inOrder();
        Map counts = count(all);
        boolean waited = false;
        for (int i = 0; i < all.length && !closing; i++) {
            long committed = ((Long) counts.get(all[i].operator.run)).longValue();
            all[i].committed = committed;
            if (all[i].state() != Replica.FOLLOWING || all[i].version >= committed) continue;
            if (!waited) waitForTasks();
            waited = true;
            all[i].follow(committed);
        }
        if (now - measuredAt >= MEASURE_MS) {
            measuredAt = now;
            for (int i = 0; i < all.length; i++)
                synchronized (all[i]) {
                    if (all[i].state() == Replica.FOLLOWING) all[i].measure();
                }
        }
        makeRoom(all);
        for (int i = 0; i < all.length && !closing; i++) {
            Replica replica = all[i];
            long committed = ((Long) counts.get(replica.operator.run)).longValue();
            if (replica.state() != Replica.WANTED && replica.state() != Replica.NO_ROOM) continue;
            if (committed < 1L || replica.notBefore > now) continue;
            long expected = expected(replica);
            if (!fits(all, replica, expected)) {
                replica.why = "no room: " + megabytes(used()) + " of " + megabytes(budget) + " MB are taken, it would take "
                    + megabytes(expected);
                continue;
            }
            if (!waited) waitForTasks();
            waited = true;
            replica.load(committed);
            if (System.currentTimeMillis() - now > LOAD_LIMIT_MS) break; // keep the others up to date first
        }
        return countFault;
    }

    /** Drop replicas that are not requested, or that Spark opened; create requested ones. */
    private void reconcile() throws Exception {
        for (java.util.Iterator each = replicas.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            Replica replica = (Replica) entry.getValue();
            if (!replica.over() && (!requested.containsKey(entry.getKey()) || SparkInternals.isLoaded(replica.id)))
                replica.drop();
            if (replica.over()) each.remove();
        }
        for (java.util.Iterator each = requested.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            String[] key = ((String) entry.getKey()).split("\t");
            int rank = ((Integer) entry.getValue()).intValue();
            Replica replica = (Replica) replicas.get(entry.getKey());
            if (replica != null) replica.rank = rank;
            Operator operator = (Operator) operators.get(key[0]);
            if (replica != null || operator == null) continue;
            int partition = Integer.parseInt(key[1]);
            if (SparkInternals.isLoaded(operator.id(partition))) continue;
            replicas.put(entry.getKey(), operator.rocks()
                ? (Replica) new RocksReplica(operator, partition, rank) : (Replica) new MapReplica(operator, partition, rank));
        }
    }

    /** Committed batches by run; -1 if unknown for now, with the reason in `countFault`. */
    private Map count(Replica[] all) {
        Map counts = new HashMap();
        countFault = "";
        for (int i = 0; i < all.length; i++) {
            String run = all[i].operator.run;
            if (counts.containsKey(run)) continue;
            counts.put(run, Long.valueOf(-1L));
            try {
                if (!commits.containsKey(run)) commits.put(run, new Commits(all[i].operator));
                counts.put(run, Long.valueOf(((Commits) commits.get(run)).count()));
            } catch (Exception problem) {
                countFault = problem.toString();
            }
        }
        commits.keySet().retainAll(counts.keySet());
        return counts;
    }

    private void waitForTasks() throws InterruptedException {
        long until = System.currentTimeMillis() + TASK_WAIT_MS;
        while (running.get() > 0 && System.currentTimeMillis() < until) Thread.sleep(10L);
    }

    private long used() {
        long bytes = 0L;
        for (java.util.Iterator each = replicas.values().iterator(); each.hasNext();) {
            Replica replica = (Replica) each.next();
            if (replica.state() == Replica.FOLLOWING) bytes += replica.memory;
        }
        return bytes;
    }

    /** Expected bytes of a replica: as last time, as its largest sibling, or by the size of its files. */
    private long expected(Replica replica) {
        if (replica.memory > 0L) return replica.memory;
        long most = 0L;
        for (java.util.Iterator each = replicas.values().iterator(); each.hasNext();) {
            Replica other = (Replica) each.next();
            if (other.operator == replica.operator && other.state() == Replica.FOLLOWING)
                most = Math.max(most, other.memory);
        }
        if (most > 0L || replica.operator.rocks()) return most;
        try {
            return (long) (FILE_GROWTH * files(replica));
        } catch (Exception unknown) {
            return 0L; // reading it will show the reason
        }
    }

    /** Bytes of the files that the replica would be made of. */
    private static long files(Replica replica) throws Exception {
        org.apache.hadoop.fs.Path folder = replica.operator.folder(replica.partition);
        org.apache.hadoop.fs.FileStatus[] files = folder.getFileSystem(replica.operator.hadoop()).listStatus(folder);
        long newest = -1L, snapshot = 0L, deltas = 0L;
        for (int i = 0; i < files.length; i++) {
            String name = files[i].getPath().getName();
            if (name.endsWith(".snapshot") && !name.startsWith(".")) {
                long version = Long.parseLong(name.substring(0, name.length() - 9));
                if (version > newest) snapshot = files[i].getLen();
                newest = Math.max(newest, version);
            } else if (name.endsWith(".delta") && !name.startsWith(".")) deltas += files[i].getLen();
        }
        return newest >= 0L ? snapshot : deltas;
    }

    /**
     * Discard the coldest replicas while all exceed the budget: those with the last ranks first, then those that change
     * least.
     */
    private void makeRoom(Replica[] all) {
        for (int i = all.length - 1; i >= 0 && used() > budget; i--)
            if (all[i].state() == Replica.FOLLOWING)
                all[i].leave("no room: copies took more than " + megabytes(budget) + " MB, and this one was the coldest");
    }

    /** Return true if a replica of `expected` bytes fits. Replicas with later ranks leave for it, if that suffices. */
    private boolean fits(Replica[] all, Replica replica, long expected) {
        int[] ranks = new int[all.length];
        long[] memory = new long[all.length];
        for (int i = 0; i < all.length; i++) {
            ranks[i] = all[i].rank;
            memory[i] = all[i].state() == Replica.FOLLOWING ? all[i].memory : 0L;
        }
        boolean[] leaves = leaving(ranks, memory, replica.rank, used() + expected - budget);
        if (leaves == null) return false;
        for (int i = all.length - 1; i >= 0; i--)
            if (leaves[i])
                all[i].leave("no room: it was the coldest where a nearer successor's copy needed " + megabytes(expected) + " MB");
        return true;
    }

    /**
     * Choose the replicas, in order from the warmest, that leave to free `missing` bytes: the coldest with later ranks than
     * `rank`; null if all of these do not suffice. memory: bytes that each frees.
     */
    static boolean[] leaving(int[] ranks, long[] memory, int rank, long missing) {
        boolean[] leaves = new boolean[ranks.length];
        for (int i = ranks.length - 1; i >= 0 && missing > 0L; i--) {
            leaves[i] = ranks[i] > rank && memory[i] > 0L;
            if (leaves[i]) missing -= memory[i];
        }
        return missing > 0L ? null : leaves;
    }

    private static long megabytes(long bytes) {
        return bytes / 1000000L;
    }

    /** Replicas, the warmest first. */
    private Replica[] inOrder() {
        Replica[] all = (Replica[]) replicas.values().toArray(new Replica[0]);
        Arrays.sort(all);
        return all;
    }

    /** Report, and receive the requested replicas if they have changed. */
    private void exchange() throws Exception {
        List openings = new ArrayList();
        for (Object each = OPENED.poll(); each != null; each = OPENED.poll()) openings.add(each);
        HashMap message = new HashMap();
        message.put("executor", context.executorID());
        message.put("table", Long.valueOf(table));
        message.put("present", new HashSet(operators.keySet()));
        message.put("report", report());
        message.put("opened", openings);
        Map answer = (Map) context.ask(message);
        Map more = (Map) answer.get("operators");
        for (java.util.Iterator each = more.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            operators.put(entry.getKey(), Operator.of((byte[]) entry.getValue()));
        }
        String rows = (String) answer.get("requested");
        if (rows == null) return;
        Map next = new HashMap();
        HashSet live = new HashSet();
        String[] lines = rows.split("\n");
        for (int i = 0; i < lines.length; i++) {
            String[] parts = lines[i].split("\t"); // operator partition rank
            if (parts.length < 3) continue;
            next.put(parts[0] + "\t" + parts[1], Integer.valueOf(parts[2]));
            live.add(parts[0]);
        }
        operators.keySet().retainAll(live);
        requested = next;
        table = ((Long) answer.get("table")).longValue();
    }

    /** Lines "operator partition state version committed memory disk why", by tabs, after "budget fault". */
    private String report() {
        StringBuilder out = new StringBuilder().append(budget).append('\t').append(line(fault.isEmpty() ? taskFault : fault)).append('\n');
        for (java.util.Iterator each = replicas.values().iterator(); each.hasNext();) {
            Replica replica = (Replica) each.next();
            out.append(replica.operator.name()).append('\t').append(replica.partition).append('\t').append(Replica.NAMES[replica.state()])
                .append('\t').append(replica.version).append('\t').append(replica.committed).append('\t').append(replica.memory).append('\t').append(replica.disk)
                .append('\t').append(line(replica.why)).append('\n');
        }
        return out.toString();
    }

    static String line(String text) {
        return text == null ? "" : text.replace('\t', ' ').replace('\n', ' ').replace('\r', ' ');
    }
}
