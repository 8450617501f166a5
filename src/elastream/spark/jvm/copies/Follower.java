package elastream.copies;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
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
 * Keeps the copies of one executor, in one thread of its own: it asks the driver's desk what to keep, reads committed batches
 * from the checkpoint, and reports. It takes no task slot, and reports nothing to Spark's coordinator.
 *
 * A task that starts here (in its own thread, before it opens anything) takes the copy of its partition if the coordinator has
 * that partition here: then Spark finds it open as if it had loaded it itself. So Spark's own provider classes stay what
 * checkpoints name, and a session without copies reads them as before.
 */
public final class Follower implements ExecutorPlugin, Runnable {
    /** Milliseconds between two looks for committed batches, and between two reports to the desk. */
    private static final long TICK = 200L, TALK = 400L;
    /** Milliseconds that work waits for the tasks of this executor: it is done between batches where there is such a time. */
    private static final long PATIENCE = 300L;
    /** Milliseconds of a round after which no further copy is loaded in it. */
    private static final long LOADING = 1000L;
    /** Milliseconds between two measurements of what copies take. */
    private static final long MEASURED = 2000L;
    /** Of the heap, what copies take at most; and times the size of its files that a copy is expected to take. */
    private static final double SHARE = 0.3, GROWTH = 8.0;
    /** A job that loads state ahead names the run whose partitions its tasks open. */
    private static final String OPENS = "elastream.opens";

    private static final org.slf4j.Logger LOG = org.slf4j.LoggerFactory.getLogger("elastream.copies");
    private static final ConcurrentLinkedQueue OPENED = new ConcurrentLinkedQueue();

    private final Map operators = new HashMap();
    private final Map commits = new HashMap();
    private final ConcurrentHashMap copies = new ConcurrentHashMap();
    private final AtomicInteger running = new AtomicInteger();
    private Map wanted = new HashMap();
    private long table = -1L, talked = 0L, measured = 0L, budget;
    private volatile PluginContext context;
    private volatile boolean closing = false;
    private volatile String fault = "", trouble = "";
    private volatile StateStoreCoordinatorRef coordinator;
    private String uncounted = "";
    private Thread thread;

    public void init(PluginContext context, Map settings) {
        try {
            this.context = context;
            double share = context.conf().getDouble("spark.elastream.copies.share", SHARE);
            this.budget = (long) (share * Runtime.getRuntime().maxMemory());
            thread = new Thread(this, "elastream-copies");
            thread.setDaemon(true);
            thread.setPriority(Thread.MIN_PRIORITY);
            thread.start();
        } catch (Throwable problem) {
            fault = problem.toString(); // an executor without copies is better than none
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
            if (copies.isEmpty() || task == null) return;
            String opens = task.getLocalProperty(OPENS);
            String run = opens != null ? opens : task.getLocalProperty("spark.jobGroup.id");
            if (run == null) return;
            for (java.util.Iterator each = copies.values().iterator(); each.hasNext();) {
                Copy copy = (Copy) each.next();
                if (copy.partition == task.partitionId() && copy.state() == Copy.FOLLOWING && copy.operator.run.equals(run)
                    && copy.operator.partitions == task.numPartitions() && (opens != null || isHere(copy)))
                    hand(copy);
            }
        } catch (Throwable problem) {
            trouble = problem.toString(); // the task opens the checkpoint, as it does without copies
            LOG.warn("a copy was not handed over", problem);
        }
    }

    public void onTaskSucceeded() {
        if (running.decrementAndGet() < 0) running.set(0); // some tasks fail that never began
    }

    public void onTaskFailed(TaskFailedReason reason) {
        onTaskSucceeded();
    }

    /** Whether Spark's coordinator has the partition here: another stage may have a task of the same number. */
    private boolean isHere(Copy copy) {
        if (coordinator == null) coordinator = StateStoreCoordinatorRef.forExecutor(SparkEnv.get());
        return coordinator.verifyIfInstanceActive(copy.id, context.executorID());
    }

    private void hand(Copy copy) throws Exception {
        if (Inside.isLoaded(copy.id)) return;
        StateStoreProvider given = copy.take();
        boolean handed = given != null && Inside.hand(copy.id, given);
        LOG.info("copy of " + copy.id + (handed ? " handed over" : " not handed over: " + copy.why));
        if (given != null && !handed) given.close();
    }

    /** A task opened what was a copy: it had `from` batches, `version` were asked for, `files` were read. */
    static void opened(Operator operator, int partition, long from, long version, int files, long nanoseconds) {
        OPENED.add(operator.name() + "\t" + partition + "\t" + from + "\t" + version + "\t" + files + "\t" + nanoseconds / 1000000.0);
    }

    // -- in the follower's thread

    public void run() {
        try {
            Class.forName("elastream.copies.Inside", true, Follower.class.getClassLoader());
        } catch (Throwable missing) { // known with the first report, and not when the first copy is wanted
            Throwable cause = missing.getCause();
            trouble = cause == null ? missing.toString() : cause.toString();
        }
        while (!closing) {
            try {
                fault = round();
            } catch (Throwable problem) {
                if (!closing) fault = problem.toString();
            }
            try {
                Thread.sleep(TICK);
            } catch (InterruptedException woken) {
                continue;
            }
        }
        for (java.util.Iterator each = copies.values().iterator(); each.hasNext();) ((Copy) each.next()).drop();
    }

    /** What could not be done in it; empty where all was. */
    private String round() throws Exception {
        long now = System.currentTimeMillis();
        if (now - talked >= TALK) {
            talked = now;
            talk();
        }
        if (wanted.isEmpty() && copies.isEmpty()) return "";
        reconcile();
        Copy[] all = inOrder();
        Map counts = count(all);
        boolean waited = false;
        for (int i = 0; i < all.length && !closing; i++) {
            long committed = ((Long) counts.get(all[i].operator.run)).longValue();
            all[i].committed = committed;
            if (all[i].state() != Copy.FOLLOWING || all[i].version >= committed) continue;
            if (!waited) waitForTasks();
            waited = true;
            all[i].follow(committed);
        }
        if (now - measured >= MEASURED) {
            measured = now;
            for (int i = 0; i < all.length; i++)
                synchronized (all[i]) {
                    if (all[i].state() == Copy.FOLLOWING) all[i].measure();
                }
        }
        makeRoom(all);
        for (int i = 0; i < all.length && !closing; i++) {
            Copy copy = all[i];
            long committed = ((Long) counts.get(copy.operator.run)).longValue();
            if ((copy.state() != Copy.WANTED && copy.state() != Copy.NO_ROOM) || committed < 1L || copy.notBefore > now) continue;
            long expected = expected(copy);
            if (!fits(all, copy, expected)) {
                copy.why = "no room: " + megabytes(used()) + " of " + megabytes(budget) + " MB are taken, it would take "
                    + megabytes(expected);
                continue;
            }
            if (!waited) waitForTasks();
            waited = true;
            copy.load(committed);
            if (System.currentTimeMillis() - now > LOADING) break; // the others are to stay up to date meanwhile
        }
        return uncounted;
    }

    /** Let go what is not wanted, or is Spark's own by now; begin what is wanted and not there. */
    private void reconcile() throws Exception {
        for (java.util.Iterator each = copies.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            Copy copy = (Copy) entry.getValue();
            if (!copy.over() && (!wanted.containsKey(entry.getKey()) || Inside.isLoaded(copy.id))) copy.drop();
            if (copy.over()) each.remove();
        }
        for (java.util.Iterator each = wanted.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            String[] key = ((String) entry.getKey()).split("\t");
            int rank = ((Integer) entry.getValue()).intValue();
            Copy known = (Copy) copies.get(entry.getKey());
            if (known != null) known.rank = rank;
            Operator operator = (Operator) operators.get(key[0]);
            if (known != null || operator == null) continue;
            int partition = Integer.parseInt(key[1]);
            if (Inside.isLoaded(operator.id(partition))) continue;
            copies.put(entry.getKey(), operator.rocks()
                ? (Copy) new RocksCopy(operator, partition, rank) : (Copy) new MapCopy(operator, partition, rank));
        }
    }

    /** Committed batches by run; -1 where they cannot be counted now, which `uncounted` says. */
    private Map count(Copy[] all) {
        Map found = new HashMap();
        uncounted = "";
        for (int i = 0; i < all.length; i++) {
            String run = all[i].operator.run;
            if (found.containsKey(run)) continue;
            found.put(run, Long.valueOf(-1L));
            try {
                if (!commits.containsKey(run)) commits.put(run, new Commits(all[i].operator));
                found.put(run, Long.valueOf(((Commits) commits.get(run)).count()));
            } catch (Exception problem) {
                uncounted = problem.toString();
            }
        }
        commits.keySet().retainAll(found.keySet());
        return found;
    }

    private void waitForTasks() throws InterruptedException {
        for (long until = System.currentTimeMillis() + PATIENCE; running.get() > 0 && System.currentTimeMillis() < until;)
            Thread.sleep(10L);
    }

    private long used() {
        long bytes = 0L;
        for (java.util.Iterator each = copies.values().iterator(); each.hasNext();) {
            Copy copy = (Copy) each.next();
            if (copy.state() == Copy.FOLLOWING) bytes += copy.memory;
        }
        return bytes;
    }

    /** Bytes that a copy will take: as it did last, as the largest of its kind, or by the size of its files. */
    private long expected(Copy copy) {
        if (copy.memory > 0L) return copy.memory;
        long most = 0L;
        for (java.util.Iterator each = copies.values().iterator(); each.hasNext();) {
            Copy other = (Copy) each.next();
            if (other.operator == copy.operator && other.state() == Copy.FOLLOWING) most = Math.max(most, other.memory);
        }
        if (most > 0L || copy.operator.rocks()) return most;
        try {
            return (long) (GROWTH * files(copy));
        } catch (Exception unknown) {
            return 0L; // reading it will say why
        }
    }

    /** Bytes of the files that a copy would be made of. */
    private static long files(Copy copy) throws Exception {
        org.apache.hadoop.fs.Path folder = copy.operator.folder(copy.partition);
        org.apache.hadoop.fs.FileStatus[] files = folder.getFileSystem(copy.operator.hadoop()).listStatus(folder);
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

    /** Let the coldest copies go while all together take too much: those that take over last, of these what changes least. */
    private void makeRoom(Copy[] all) {
        for (int i = all.length - 1; i >= 0 && used() > budget; i--)
            if (all[i].state() == Copy.FOLLOWING)
                all[i].leave("no room: copies took more than " + megabytes(budget) + " MB, and this one was the coldest");
    }

    /** Whether a copy that takes so much has room; those of hosts further from taking over leave for it, if that suffices. */
    private boolean fits(Copy[] all, Copy copy, long expected) {
        int[] ranks = new int[all.length];
        long[] memory = new long[all.length];
        for (int i = 0; i < all.length; i++) {
            ranks[i] = all[i].rank;
            memory[i] = all[i].state() == Copy.FOLLOWING ? all[i].memory : 0L;
        }
        boolean[] leaves = leaving(ranks, memory, copy.rank, used() + expected - budget);
        if (leaves == null) return false;
        for (int i = all.length - 1; i >= 0; i--)
            if (leaves[i])
                all[i].leave("no room: it was the coldest where a nearer successor's copy needed " + megabytes(expected) + " MB");
        return true;
    }

    /**
     * Which of copies in order, the warmest first, leave so that `missing` bytes become free: the coldest of hosts further
     * from taking over than `rank`; null, and none leaves, where all of these do not suffice. memory: bytes that each gives
     * back.
     */
    static boolean[] leaving(int[] ranks, long[] memory, int rank, long missing) {
        boolean[] found = new boolean[ranks.length];
        for (int i = ranks.length - 1; i >= 0 && missing > 0L; i--) {
            found[i] = ranks[i] > rank && memory[i] > 0L;
            if (found[i]) missing -= memory[i];
        }
        return missing > 0L ? null : found;
    }

    private static long megabytes(long bytes) {
        return bytes / 1000000L;
    }

    /** Copies, the warmest first: by place in the order of successors, then by how much changes. */
    private Copy[] inOrder() {
        Copy[] all = (Copy[]) copies.values().toArray(new Copy[0]);
        Arrays.sort(all, new Warmth());
        return all;
    }

    private static final class Warmth implements Comparator {
        public int compare(Object left, Object right) {
            Copy one = (Copy) left, other = (Copy) right;
            return one.rank != other.rank ? Integer.compare(one.rank, other.rank) : Double.compare(other.heat, one.heat);
        }
    }

    /** Report, and take what the desk wants kept here if that has changed. */
    private void talk() throws Exception {
        List openings = new ArrayList();
        for (Object each = OPENED.poll(); each != null; each = OPENED.poll()) openings.add(each);
        HashMap message = new HashMap();
        message.put("executor", context.executorID());
        message.put("table", Long.valueOf(table));
        message.put("known", new HashSet(operators.keySet()));
        message.put("report", report());
        message.put("opened", openings);
        Map answer = (Map) context.ask(message);
        Map more = (Map) answer.get("operators");
        for (java.util.Iterator each = more.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            operators.put(entry.getKey(), Operator.of((byte[]) entry.getValue()));
        }
        String rows = (String) answer.get("wanted");
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
        wanted = next;
        table = ((Long) answer.get("table")).longValue();
    }

    /** "operator partition state version committed memory disk why" a line, by tabs, behind "budget fault". */
    private String report() {
        StringBuilder out = new StringBuilder().append(budget).append('\t').append(line(fault.isEmpty() ? trouble : fault)).append('\n');
        for (java.util.Iterator each = copies.values().iterator(); each.hasNext();) {
            Copy copy = (Copy) each.next();
            out.append(copy.operator.name()).append('\t').append(copy.partition).append('\t').append(Copy.NAMES[copy.state()])
                .append('\t').append(copy.version).append('\t').append(copy.committed).append('\t').append(copy.memory).append('\t').append(copy.disk)
                .append('\t').append(line(copy.why)).append('\n');
        }
        return out.toString();
    }

    static String line(String text) {
        return text == null ? "" : text.replace('\t', ' ').replace('\n', ' ').replace('\r', ' ');
    }
}
