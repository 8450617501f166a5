// What the driver does by itself when an executor is lost, within milliseconds and without Python: a SparkListener, compiled
// by recovery.py in the Java that Janino knows (no lambdas, no generics). Its event comes after Spark has failed the tasks that
// ran there and put them back among the waiting ones; where slots are free, they run anywhere by then. So beside it something
// stands in the scheduler's pool, which hears of the loss before the stages do: it gives these tasks a place among the living.
// It is asked before slots are offered, too, and does the same for stages that were submitted to the lost executor meanwhile.
//
// Spark's own: the coordinator goes on naming the lost executor as the place of its state partitions, and tasks that wait for
// it, or for its host, do so for spark.locality.wait twice (once a level) before they run anywhere. Here: each of its
// partitions is reported at its first living successor, and the waiting tasks of running stages are filed under where their
// state is now; stages that fail for want of its shuffle files run again at once. Nothing else is touched; a task that has a
// place among the living keeps it, and its wait.

private org.apache.spark.SparkContext context;
private org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorRef coordinator;
private volatile String[][] stages = new String[0][];
private final StringBuilder happened = new StringBuilder();
private final java.util.List lost = new java.util.ArrayList(); // recently, used by the thread of the listener alone
private final java.util.List heirs = new java.util.ArrayList(); // of those: arrays of stage, field of the partition, heir
private long recentUntil;
private String resubmitted = ""; // the newest attempt of a stage
private org.apache.spark.scheduler.Schedulable early; // in the pool; null where not
private volatile String readdressing = ""; // why it could not
private final java.util.List gone = new java.util.ArrayList(); // the executors lost last; with the scheduler's lock, as the next
private int refiled; // tasks that were submitted to one of these and sent elsewhere, since somebody asked

private static final int GONE = 64; // that are remembered: stages name them for as long as submitting one takes
private static final long RECENT = 10L * 1000L * 1000L * 1000L; // nanoseconds: longer than submitting a stage takes

/** Fails where this Spark lacks what is used when it matters. */
public void begin(Object context, Object coordinator) {
    this.context = (org.apache.spark.SparkContext) context;
    this.coordinator = (org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorRef) coordinator;
    client().getExecutorIds();
    waiting(java.util.Collections.singletonList("none"));
}

/** Listen in a queue of its own: behind no other listener. */
public void listen() {
    context.listenerBus().addToQueue(this, "elastream-recovery");
    org.apache.spark.scheduler.Pool pool = scheduler().rootPool();
    // Under FAIR the stages are in pools that were there before, and hear of a loss first.
    if (early != null || !"FIFO".equals(String.valueOf(pool.schedulingMode()))) return;
    early = early();
    synchronized (scheduler()) {
        pool.addSchedulable(early);
    }
}

public void end() {
    context.listenerBus().removeListener(this);
    if (early == null) return;
    synchronized (scheduler()) {
        scheduler().rootPool().removeSchedulable(early);
    }
    early = null;
}

/** Something without tasks in the pool of the scheduler, which is told of lost executors in the scheduler's own thread. */
private org.apache.spark.scheduler.Schedulable early() {
    return (org.apache.spark.scheduler.Schedulable) java.lang.reflect.Proxy.newProxyInstance(
        org.apache.spark.scheduler.Schedulable.class.getClassLoader(),
        new Class[] {org.apache.spark.scheduler.Schedulable.class},
        new java.lang.reflect.InvocationHandler() {
            public Object invoke(Object proxy, java.lang.reflect.Method method, Object[] arguments) {
                String name = method.getName();
                if (name.equals("executorLost")) readdress((String) arguments[0]);
                if (name.equals("getSortedTaskSetQueue")) {
                    refile(); // slots are about to be offered
                    return new scala.collection.mutable.ArrayBuffer();
                }
                if (name.equals("name") || name.equals("toString")) return "elastream-recovery";
                if (name.equals("equals")) return Boolean.valueOf(proxy == arguments[0]);
                if (name.equals("hashCode")) return Integer.valueOf(System.identityHashCode(proxy));
                if (method.getReturnType() == Boolean.TYPE) return Boolean.FALSE;
                return method.getReturnType() == Integer.TYPE ? Integer.valueOf(0) : null;
            }
        });
}

/**
 * Have the tasks that run at `lost`, or did, run again at the first living successor of their state partition. Called with the
 * scheduler's lock, before it puts them back: nothing is asked of anyone here.
 */
private void readdress(String lost) {
    gone.add(lost);
    if (gone.size() > GONE) gone.remove(0);
    try {
        java.util.Map living = living(lost);
        scala.collection.mutable.ArrayBuffer all = scheduler().rootPool().getSortedTaskSetQueue();
        for (int i = 0; i < all.size(); i++) {
            org.apache.spark.scheduler.TaskSetManager tasks = (org.apache.spark.scheduler.TaskSetManager) all.apply(i);
            String[] stage = known(tasks);
            if (stage == null || tasks.isZombie()) continue;
            boolean found = false;
            for (int index = 0; index < tasks.tasks().length; index++) {
                int field = tasks.tasks()[index].partitionId() + 3;
                if (waits(tasks, index) || field >= stage.length || hostAmong(tasks, index, lost) == null) continue;
                String heir = successor(stage[field], living);
                if (heir == null) continue;
                prefer(tasks.tasks()[index], heir);
                found = true;
            }
            if (found) mark(tasks.taskSet(), stage[0]);
        }
    } catch (Throwable thrown) { // they run anywhere, as they do in Spark
        readdressing = "places of running tasks: " + thrown;
    }
}

/**
 * Have tasks that wait for an executor which is lost wait for the first living successor of their state partition.
 * Called with the scheduler's lock. Those without a successor are left to what follows from the event of the loss.
 */
private void refile() {
    if (gone.isEmpty()) return;
    java.util.List all = new java.util.ArrayList(gone);
    gone.clear(); // what is asked below asks this again
    try {
        java.util.List found = waiting(all);
        java.util.Map living = found.isEmpty() ? null : living("");
        for (int i = 0; i < found.size(); i++) {
            Waiting each = (Waiting) found.get(i);
            String[] stage = known(each.tasks);
            int field = each.task().partitionId() + 3;
            if (stage == null || field >= stage.length) continue;
            String heir = successor(stage[field], living);
            if (heir == null) continue;
            prefer(each.task(), heir);
            mark(each.tasks.taskSet(), stage[0]);
            each.file(scheduler(), java.util.Collections.singletonList(each.task().preferredLocations().head()));
            refiled++;
        }
    } catch (Throwable thrown) { // they run anywhere, as they do in Spark
        readdressing = "places of waiting tasks: " + thrown;
    }
    gone.addAll(all);
}

/** Tasks that were sent elsewhere before slots were offered, since the last call. */
private int refiled() {
    synchronized (scheduler()) {
        int found = refiled;
        refiled = 0;
        return found;
    }
}

/** State partitions of the run of `tasks` and who follows whom; null for none. Of several stages neighbours are the same. */
private String[] known(org.apache.spark.scheduler.TaskSetManager tasks) {
    java.util.Properties properties = tasks.taskSet().properties();
    String run = properties == null ? null : properties.getProperty("spark.jobGroup.id");
    String[][] all = stages;
    for (int i = 0; i < all.length; i++) if (all[i][0].equals(run)) return all[i];
    return null;
}

/**
 * Say to executors that tasks of `stage` open state of `run`, as jobs that load state ahead do: they may start before the
 * coordinator knows its new places.
 */
private static void mark(org.apache.spark.scheduler.TaskSet stage, String run) throws Exception {
    if (run.equals(stage.properties().getProperty("elastream.opens"))) return;
    java.util.Properties marked = (java.util.Properties) stage.properties().clone(); // what others read at this moment stays
    marked.setProperty("elastream.opens", run);
    set(stage, "properties", marked);
}

private static void set(Object on, String field, Object value) throws Exception {
    java.lang.reflect.Field found = on.getClass().getDeclaredField(field);
    found.setAccessible(true);
    found.set(on, value);
}

/** Let `task` wait for `executor`, when it is put among the waiting ones again. */
private void prefer(org.apache.spark.scheduler.Task task, String executor) throws Exception {
    Object place = new org.apache.spark.scheduler.ExecutorCacheTaskLocation(hostOf(executor), executor);
    set(task, "preferredLocs", scala.collection.immutable.Nil$.MODULE$.$colon$colon(place));
}

/**
 * Take who follows whom: a line a group of stateful operators that share their tasks, "run root operator:store,store;... "
 * and by partition the executors that are to take it, nearest first, "executor,executor"; all by tabs.
 */
public void follow(String lines) {
    String[] all = lines.length() == 0 ? new String[0] : lines.split("\n");
    String[][] found = new String[all.length][];
    for (int i = 0; i < all.length; i++) found[i] = all[i].split("\t", -1);
    stages = found;
}

/**
 * Losses since the last call, oldest first: "executor epochMilliseconds reason tookMicroseconds waiting fault" a line by tabs,
 * and behind each a field a partition that was put elsewhere, "run:operators:partition:executor". waiting: tasks that were
 * waiting for it and have another place now. fault: why a part of it was not done, else empty.
 */
public String happened() {
    synchronized (happened) {
        String found = happened.toString();
        happened.setLength(0);
        return found;
    }
}

public void onExecutorRemoved(org.apache.spark.scheduler.SparkListenerExecutorRemoved removed) {
    long began = System.nanoTime();
    StringBuilder moved = new StringBuilder();
    int unstuck = 0;
    String fault = readdressing;
    readdressing = "";
    try {
        unstuck = refiled();
        repoint(removed.executorId(), moved);
    } catch (Throwable thrown) {
        fault = fault + (fault.length() == 0 ? "" : "; ") + "state partitions: " + thrown;
    }
    try {
        unstuck += unstick(removed.executorId());
    } catch (Throwable thrown) {
        fault = fault + (fault.length() == 0 ? "" : "; ") + "waiting tasks: " + thrown;
    }
    lost.add(removed.executorId());
    recentUntil = System.nanoTime() + RECENT;
    note(removed.executorId(), removed.time(), removed.reason(), began, unstuck, fault, moved.toString());
}

/**
 * A stage that was being submitted when an executor was lost may have been told of it still: its first tasks start, and those
 * that wait for that executor are sent elsewhere.
 */
public void onTaskStart(org.apache.spark.scheduler.SparkListenerTaskStart started) {
    if (lost.isEmpty()) return;
    if (System.nanoTime() > recentUntil) {
        lost.clear();
        heirs.clear();
    }
    for (int i = 0; i < lost.size(); i++) {
        long began = System.nanoTime();
        int unstuck = i == 0 ? refiled() : 0;
        String fault = "";
        try {
            unstuck += unstick((String) lost.get(i));
        } catch (Throwable thrown) {
            fault = "waiting tasks: " + thrown;
        }
        if (unstuck > 0 || fault.length() > 0) {
            note((String) lost.get(i), System.currentTimeMillis(), "a stage was being submitted", began, unstuck, fault, "");
        }
    }
}

/**
 * Run the stages that failed for want of a lost executor's shuffle files again at once. Spark waits 200 ms for more of them to
 * fail, which says nothing new where the executor is known to be lost: it has forgotten all of those files already. Its own
 * message finds nothing left to do then.
 */
public void onTaskEnd(org.apache.spark.scheduler.SparkListenerTaskEnd ended) {
    if (lost.isEmpty() || !(ended.reason() instanceof org.apache.spark.FetchFailed)) return;
    String attempt = ended.stageId() + "." + ended.stageAttemptId();
    if (attempt.equals(resubmitted)) return;
    resubmitted = attempt;
    try {
        repeat();
        context.dagScheduler().eventProcessLoop().post(org.apache.spark.scheduler.ResubmitFailedStages$.MODULE$);
    } catch (Throwable thrown) {
        note("", System.currentTimeMillis(), "a stage failed", System.nanoTime(), 0, "failed stages: " + thrown, "");
    }
}

private void note(String executor, long at, String reason, long began, int unstuck, String fault, String moved) {
    synchronized (happened) {
        happened.append(executor).append('\t').append(at).append('\t').append(line(reason)).append('\t')
            .append((System.nanoTime() - began) / 1000L).append('\t').append(unstuck).append('\t').append(line(fault))
            .append(moved).append('\n');
    }
}

/** Report every state partition that was at `lost` at the first of its successors that lives, else where fewest are. */
private void repoint(String lost, StringBuilder moved) {
    String[][] known = stages;
    java.util.Map held = living(lost);
    if (held.isEmpty()) return;
    java.util.List gone = new java.util.ArrayList();
    for (int i = 0; i < known.length; i++) {
        for (int p = 3; p < known[i].length; p++) {
            scala.Option at = coordinator.getLocation(provider(known[i], operators(known[i])[0], p - 3, 0));
            if (at.isEmpty()) continue;
            String executor = executorOf((String) at.get());
            if (executor.equals(lost)) gone.add(new int[] {i, p});
            else if (held.containsKey(executor)) count(held, executor);
        }
    }
    for (int g = 0; g < gone.size(); g++) {
        int[] which = (int[]) gone.get(g);
        String[] stage = known[which[0]];
        String heir = heir(stage[which[1]], held);
        count(held, heir);
        report(stage, which[1], heir);
        heirs.add(new Object[] {stage, Integer.valueOf(which[1]), heir});
        moved.append('\t').append(stage[0]).append(':').append(ids(operators(stage))).append(':').append(which[1] - 3)
            .append(':').append(heir);
    }
}

/** Have the partition in field `field` of `stage` run at `heir`. */
private void report(String[] stage, int field, String heir) {
    String[] operators = operators(stage);
    for (int o = 0; o < operators.length; o++) {
        for (int s = 0; s < stores(operators[o]).length; s++) {
            coordinator.reportActiveInstance(provider(stage, operators[o], field - 3, s), hostOf(heir), heir,
                (scala.collection.immutable.Seq) scala.collection.immutable.Nil$.MODULE$);
        }
    }
}

/**
 * Report partitions at their heirs again. Where no task waited for another executor, Spark ran those that were lost anywhere,
 * before its event: these opened their state there, and then failed for want of shuffle files.
 */
private void repeat() {
    for (int i = 0; i < heirs.size(); i++) {
        Object[] each = (Object[]) heirs.get(i);
        String[] stage = (String[]) each[0];
        int field = ((Integer) each[1]).intValue();
        scala.Option at = coordinator.getLocation(provider(stage, operators(stage)[0], field - 3, 0));
        boolean elsewhere = at.isDefined() && !executorOf((String) at.get()).equals(each[2]);
        if (elsewhere && lives((String) each[2], "")) report(stage, field, (String) each[2]);
    }
}

/** Executors that live without `lost`, none of which has been given anything: a number of partitions, 0, by each. */
private java.util.Map living(String lost) {
    java.util.Map found = new java.util.TreeMap();
    scala.collection.Iterator all = client().getExecutorIds().iterator();
    while (all.hasNext()) {
        String executor = (String) all.next();
        if (lives(executor, lost)) found.put(executor, Integer.valueOf(0));
    }
    return found;
}

/** The first of `successors` that lives; null where none does. */
private static String successor(String successors, java.util.Map living) {
    String[] each = successors.split(",");
    for (int i = 0; i < each.length; i++) if (living.containsKey(each[i])) return each[i];
    return null;
}

private static String heir(String successors, java.util.Map held) {
    String first = successor(successors, held);
    if (first != null) return first;
    String least = null;
    for (java.util.Iterator names = held.keySet().iterator(); names.hasNext();) {
        String name = (String) names.next();
        if (least == null || ((Integer) held.get(name)).intValue() < ((Integer) held.get(least)).intValue()) least = name;
    }
    return least;
}

private static void count(java.util.Map held, String executor) {
    held.put(executor, Integer.valueOf(((Integer) held.get(executor)).intValue() + 1));
}

/**
 * File the tasks that wait for `lost` under the place of their state now, and those without one under none.
 *
 * The scheduler's lock is held while its books are read and written, and not in between, where the coordinator is asked.
 */
private int unstick(String lost) {
    org.apache.spark.scheduler.TaskSchedulerImpl scheduler = scheduler();
    java.util.List found = waiting(java.util.Collections.singletonList(lost));
    if (found.isEmpty()) return 0;
    java.util.List places = new java.util.ArrayList();
    for (int i = 0; i < found.size(); i++) {
        Waiting each = (Waiting) found.get(i);
        places.add(places(each.tasks, each.index, lost));
    }
    int filed = 0;
    synchronized (scheduler) {
        for (int i = 0; i < found.size(); i++) {
            if (((Waiting) found.get(i)).file(scheduler, (java.util.List) places.get(i))) filed++;
        }
    }
    context.schedulerBackend().reviveOffers();
    return filed;
}

/** A task of a running stage that waits for the executor `lost`. host: of that; null where another place is named. */
private static final class Waiting {
    final org.apache.spark.scheduler.TaskSetManager tasks;
    final int index;
    final String lost;
    final String host;

    Waiting(org.apache.spark.scheduler.TaskSetManager tasks, int index, String lost, String host) {
        this.tasks = tasks;
        this.index = index;
        this.lost = lost;
        this.host = host;
    }

    org.apache.spark.scheduler.Task task() {
        return tasks.tasks()[index];
    }

    /** Let it wait for one of `places` instead, or for none. With the scheduler's lock; whether it still waited. */
    boolean file(org.apache.spark.scheduler.TaskSchedulerImpl scheduler, java.util.List places) {
        if (tasks.isZombie() || !waits(tasks, index)) return false;
        Object boxed = Integer.valueOf(index);
        org.apache.spark.scheduler.PendingTasksByLocality pending = tasks.pendingTasks();
        scala.Option there = pending.forExecutor().get(lost);
        if (there.isDefined()) ((scala.collection.mutable.Shrinkable) there.get()).subtractOne(boxed);
        if (there.isDefined() && ((scala.collection.mutable.ArrayBuffer) there.get()).isEmpty()) pending.forExecutor().remove(lost);
        for (int k = 0; k < places.size(); k++) {
            org.apache.spark.scheduler.TaskLocation place = (org.apache.spark.scheduler.TaskLocation) places.get(k);
            if (place instanceof org.apache.spark.scheduler.ExecutorCacheTaskLocation) {
                add(pending.forExecutor(), ((org.apache.spark.scheduler.ExecutorCacheTaskLocation) place).executorId(), boxed);
            }
            add(pending.forHost(), place.host(), boxed);
        }
        if (places.isEmpty()) ((scala.collection.mutable.Growable) pending.noPrefs()).addOne(boxed);
        if (host != null && !scheduler.hasExecutorsAliveOnHost(host)) pending.forHost().remove(host);
        tasks.recomputeLocality();
        return true;
    }

    private static void add(scala.collection.mutable.HashMap book, String place, Object index) {
        scala.Option there = book.get(place);
        if (there.isDefined()) {
            ((scala.collection.mutable.Growable) there.get()).addOne(index);
        } else {
            scala.collection.mutable.ArrayBuffer tasks = new scala.collection.mutable.ArrayBuffer();
            ((scala.collection.mutable.Growable) tasks).addOne(index);
            book.put(place, tasks);
        }
    }
}

/** Tasks of running stages that wait for one of the executors `lost`, each a `Waiting`. */
private java.util.List waiting(java.util.List lost) {
    org.apache.spark.scheduler.TaskSchedulerImpl scheduler = scheduler();
    java.util.List found = new java.util.ArrayList();
    synchronized (scheduler) {
        scala.collection.mutable.ArrayBuffer all = scheduler.rootPool().getSortedTaskSetQueue();
        for (int i = 0; i < all.size(); i++) {
            org.apache.spark.scheduler.TaskSetManager tasks = (org.apache.spark.scheduler.TaskSetManager) all.apply(i);
            if (!tasks.isZombie()) for (int l = 0; l < lost.size(); l++) waiting(tasks, (String) lost.get(l), found);
        }
    }
    return found;
}

private static void waiting(org.apache.spark.scheduler.TaskSetManager tasks, String lost, java.util.List found) {
    scala.Option there = tasks.pendingTasks().forExecutor().get(lost);
    if (there.isEmpty()) return;
    scala.collection.mutable.ArrayBuffer indices = (scala.collection.mutable.ArrayBuffer) there.get();
    for (int k = 0; k < indices.size(); k++) {
        int index = ((Integer) indices.apply(k)).intValue();
        if (waits(tasks, index)) found.add(new Waiting(tasks, index, lost, hostAmong(tasks, index, lost)));
    }
}

private static boolean waits(org.apache.spark.scheduler.TaskSetManager tasks, int index) {
    return !tasks.successful()[index] && tasks.copiesRunning()[index] == 0;
}

/** Host that task `index` was to run on, at executor `lost`. */
private static String hostAmong(org.apache.spark.scheduler.TaskSetManager tasks, int index, String lost) {
    scala.collection.immutable.Seq wanted = tasks.tasks()[index].preferredLocations();
    for (int i = 0; i < wanted.size(); i++) {
        if (!(wanted.apply(i) instanceof org.apache.spark.scheduler.ExecutorCacheTaskLocation)) continue;
        org.apache.spark.scheduler.ExecutorCacheTaskLocation place =
            (org.apache.spark.scheduler.ExecutorCacheTaskLocation) wanted.apply(i);
        if (place.executorId().equals(lost)) return place.host();
    }
    return null;
}

/** Where a task would be sent if its stage were submitted now, of places that live; empty where that is not known. */
private java.util.List places(org.apache.spark.scheduler.TaskSetManager tasks, int index, String lost) {
    java.util.List found = new java.util.ArrayList();
    org.apache.spark.scheduler.DAGScheduler stages = context.dagScheduler();
    scala.Option stage = stages.stageIdToStage().get(Integer.valueOf(tasks.stageId()));
    if (stage.isEmpty()) return found;
    scala.collection.immutable.Seq all = stages.getPreferredLocs(
        ((org.apache.spark.scheduler.Stage) stage.get()).rdd(), tasks.tasks()[index].partitionId());
    for (int i = 0; i < all.size(); i++) {
        if (!(all.apply(i) instanceof org.apache.spark.scheduler.ExecutorCacheTaskLocation)) continue;
        String executor = ((org.apache.spark.scheduler.ExecutorCacheTaskLocation) all.apply(i)).executorId();
        if (lives(executor, lost)) found.add(all.apply(i));
    }
    return found;
}

private org.apache.spark.scheduler.TaskSchedulerImpl scheduler() {
    return (org.apache.spark.scheduler.TaskSchedulerImpl) context.taskScheduler();
}

private org.apache.spark.ExecutorAllocationClient client() {
    return (org.apache.spark.ExecutorAllocationClient) context.schedulerBackend();
}

private boolean lives(String executor, String lost) {
    return !executor.equals(lost) && client().isExecutorActive(executor) && hostOf(executor) != null;
}

private String hostOf(String executor) {
    synchronized (scheduler()) {
        scala.Option host = scheduler().executorIdToHost().get(executor);
        return host.isDefined() ? (String) host.get() : null;
    }
}

/** Executor of a place of the coordinator, "executor_HOST_ID". */
private static String executorOf(String place) {
    return place.substring(place.lastIndexOf('_') + 1);
}

private static String[] operators(String[] stage) {
    return stage[2].split(";");
}

private static String[] stores(String operator) {
    return operator.substring(operator.indexOf(':') + 1).split(",");
}

private static String ids(String[] operators) {
    StringBuilder out = new StringBuilder();
    for (int i = 0; i < operators.length; i++) {
        out.append(i == 0 ? "" : "+").append(operators[i].substring(0, operators[i].indexOf(':')));
    }
    return out.toString();
}

private static org.apache.spark.sql.execution.streaming.state.StateStoreProviderId provider(
    String[] stage, String operator, int partition, int store) {
    return new org.apache.spark.sql.execution.streaming.state.StateStoreProviderId(
        new org.apache.spark.sql.execution.streaming.state.StateStoreId(
            stage[1], Long.parseLong(operator.substring(0, operator.indexOf(':'))), partition, stores(operator)[store]),
        java.util.UUID.fromString(stage[0]));
}

/** A text as one field of a line. */
private static String line(String text) {
    return text == null ? "" : text.replace('\t', ' ').replace('\n', ' ');
}
