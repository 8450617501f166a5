// Places of state partitions when a query starts or an executor is lost, within milliseconds: a SparkListener, compiled by
// recovery.py in Janino's Java (no lambdas, no generics). Spark posts the event of a loss after it has failed the
// executor's tasks, which by then run on any free slot. So a proxy in the scheduler's pool learns of the loss before the
// stages do, and assigns these tasks to living executors. It is also called before slots are offered, and does the same for
// stages that were meanwhile submitted to the lost executor.
//
// Spark alone: the coordinator still names the lost executor for its state partitions, and tasks that wait for it, or for
// its host, wait spark.locality.wait twice (once a level) before they run anywhere. Here: each of its partitions is
// reported at its first living successor, waiting tasks move to where their state is now, and stages that lack its shuffle
// files run again at once. A task with a living place keeps it, and its wait.
//
// Tasks of a job's first stage without state have no place of their own. The same proxy gives them planned ones:
//
//   its stage is submitted               it prefers its planned executor if that one lives, and waits for it once
//   the wait is over, the place busy     it runs anywhere, without a second wait for the host
//   that executor is lost                it prefers none: whether it waited or ran there, it runs anywhere at once
//   the plan changes                     the next batch follows it

private org.apache.spark.SparkContext context;
private org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorRef coordinator;
private volatile String[][] stages = new String[0][];
private final StringBuilder losses = new StringBuilder();
private final java.util.List lost = new java.util.ArrayList(); // recent ones, for the listener's thread alone
private final java.util.List assigned = new java.util.ArrayList(); // of losses: {stage, field of the partition, successor}
private long recentUntil;
private String resubmitted = ""; // the newest attempt of a stage
private org.apache.spark.scheduler.Schedulable poolMember; // in the pool, else null
private volatile String readdressFault = ""; // reason of a failure
private final java.util.List gone = new java.util.ArrayList(); // newest lost executors; under the scheduler's lock, as the next
private int movedSubmitted; // tasks moved off these since the last call
private volatile java.util.Map planned = new java.util.HashMap(); // fields of `place` by run
private final java.util.Map seen = new java.util.WeakHashMap(); // stages: true if tasks were placed; under that lock, too
private boolean placing; // what it calls comes back to it
private String placeFault = ""; // the last one, told once

private static final int MAX_GONE = 64; // submitting a stage may name executors lost that long ago
private static final long RECENT_NS = 10L * 1000L * 1000L * 1000L; // longer than submitting a stage takes

// Of plans whose operators keep state, if their input is a stream.
private static final String STATEFUL = " Aggregate Deduplicate DeduplicateWithinWatermark Distinct FlatMapGroupsWithState"
    + " FlatMapGroupsInPandasWithState GlobalLimit Join TransformWithState TransformWithStateInPySpark"
    + " TransformWithStateInPandas ";
private static final String JOIN = ",left-keyToNumValues,left-keyWithIndexToValue,right-keyToNumValues,right-keyWithIndexToValue";

private java.util.Map queries; // all running streaming queries, by id
private volatile String[] first = new String[0]; // executors over which the first batch of a query is spread, in order

/** Fail now if this Spark lacks what is used later. `queries`: all running streaming queries, by id. */
public void begin(Object context, Object coordinator, Object queries) {
    this.context = (org.apache.spark.SparkContext) context;
    this.queries = (java.util.Map) queries;
    this.coordinator = (org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorRef) coordinator;
    client().getExecutorIds();
    waiting(java.util.Collections.singletonList("none"));
}

/** Listen in an own queue, behind no other listener. Return false if tasks without state cannot be placed. */
public boolean listen() {
    context.listenerBus().addToQueue(this, "elastream-recovery");
    org.apache.spark.scheduler.Pool pool = scheduler().rootPool();
    // Under FAIR, older pools with the stages learn of a loss first.
    if (!"FIFO".equals(String.valueOf(pool.schedulingMode()))) return false;
    poolMember = poolMember();
    synchronized (scheduler()) {
        pool.addSchedulable(poolMember);
    }
    return true;
}

public void end() {
    context.listenerBus().removeListener(this);
    if (poolMember == null) return;
    synchronized (scheduler()) {
        scheduler().rootPool().removeSchedulable(poolMember);
    }
    poolMember = null;
}

/** A pool member without tasks, which learns of lost executors in the scheduler's thread. */
private org.apache.spark.scheduler.Schedulable poolMember() {
    return (org.apache.spark.scheduler.Schedulable) java.lang.reflect.Proxy.newProxyInstance(
        org.apache.spark.scheduler.Schedulable.class.getClassLoader(),
        new Class[] {org.apache.spark.scheduler.Schedulable.class},
        new java.lang.reflect.InvocationHandler() {
            public Object invoke(Object proxy, java.lang.reflect.Method method, Object[] arguments) {
                String name = method.getName();
                if (name.equals("executorLost")) readdress((String) arguments[0]);
                if (name.equals("getSortedTaskSetQueue")) {
                    moveSubmitted(); // slots are about to be offered
                    placeSubmitted();
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
 * Let tasks that run, or ran, at `lost` run again at the first living successor of their state partition.
 * Called with the scheduler's lock, before it requeues them, so it must not call the coordinator.
 */
private void readdress(String lost) {
    gone.add(lost);
    if (gone.size() > MAX_GONE) gone.remove(0);
    try {
        java.util.Map living = living(lost);
        scala.collection.mutable.ArrayBuffer all = scheduler().rootPool().getSortedTaskSetQueue();
        for (int i = 0; i < all.size(); i++) {
            org.apache.spark.scheduler.TaskSetManager tasks = (org.apache.spark.scheduler.TaskSetManager) all.apply(i);
            if (tasks.isZombie()) continue;
            if (Boolean.TRUE.equals(seen.get(tasks))) {
                release(tasks, lost);
                continue;
            }
            String[] stage = stageOf(tasks);
            if (stage == null) continue;
            for (int index = 0; index < tasks.tasks().length; index++) {
                if (isWaiting(tasks, index) || hostAmong(tasks, index, lost) == null) continue;
                prefer(tasks, index, stage, living);
            }
        }
    } catch (Throwable thrown) { // they run anywhere, as in plain Spark
        readdressFault = "places of running tasks: " + thrown;
    }
}

/**
 * Let tasks that wait for a lost executor wait for the first living successor of their state partition.
 * Called with the scheduler's lock. Those without a successor are left to the event of the loss.
 */
private void moveSubmitted() {
    if (gone.isEmpty()) return;
    java.util.List all = new java.util.ArrayList(gone);
    gone.clear(); // calls below come back here
    try {
        java.util.List waiters = waiting(all);
        java.util.Map living = waiters.isEmpty() ? null : living("");
        for (int i = 0; i < waiters.size(); i++) {
            Waiting each = (Waiting) waiters.get(i);
            if (Boolean.TRUE.equals(seen.get(each.tasks))) {
                release(each.tasks, each.lost);
                continue;
            }
            String[] stage = stageOf(each.tasks);
            if (stage == null || !prefer(each.tasks, each.index, stage, living)) continue;
            each.file(scheduler(), java.util.Collections.singletonList(
                each.tasks.tasks()[each.index].preferredLocations().head()));
            movedSubmitted++;
        }
    } catch (Throwable thrown) { // they run anywhere, as in plain Spark
        readdressFault = "places of waiting tasks: " + thrown;
    }
    gone.addAll(all);
}

/** Replace the planned executors of tasks without state. Lines by tabs: a run, then by partition one or nothing. */
public void place(String lines) {
    java.util.Map parsed = new java.util.HashMap();
    String[] all = lines.length() == 0 ? new String[0] : lines.split("\n");
    for (int i = 0; i < all.length; i++) {
        String[] fields = all[i].split("\t", -1);
        parsed.put(fields[0], fields);
    }
    planned = parsed;
}

/** Let tasks without state of new stages wait for their planned executors. Called with the scheduler's lock. */
private void placeSubmitted() {
    java.util.Map all = planned;
    if (all.isEmpty() || placing) return;
    placing = true;
    try {
        scala.collection.mutable.ArrayBuffer queue = scheduler().rootPool().getSortedTaskSetQueue();
        for (int i = 0; i < queue.size(); i++) {
            org.apache.spark.scheduler.TaskSetManager tasks = (org.apache.spark.scheduler.TaskSetManager) queue.apply(i);
            if (tasks.isZombie() || seen.containsKey(tasks)) continue;
            seen.put(tasks, Boolean.FALSE);
            java.util.Properties of = tasks.taskSet().properties();
            String[] fields = of == null ? null : (String[]) all.get("" + of.getProperty("spark.jobGroup.id"));
            // A barrier stage fails if some of its tasks wait.
            if (fields != null && !tasks.isBarrier() && isFirstWithoutState(tasks)) place(tasks, fields);
        }
    } catch (Throwable thrown) { // they run anywhere, as in plain Spark
        String fault = "tasks without state: " + thrown;
        if (!fault.equals(placeFault))
            note("", System.currentTimeMillis(), "a stage was submitted", System.nanoTime(), 0, fault, "");
        placeFault = fault;
    } finally {
        placing = false;
    }
}

private void place(org.apache.spark.scheduler.TaskSetManager tasks, String[] fields) throws Exception {
    for (int index = 0; index < tasks.tasks().length; index++) {
        int field = tasks.tasks()[index].partitionId() + 1;
        String executor = field < fields.length ? fields[field] : "";
        if (executor.length() == 0 || !lives(executor, "")) continue;
        Object place = new org.apache.spark.scheduler.ExecutorCacheTaskLocation(hostOf(executor), executor);
        set(tasks.tasks()[index], "preferredLocs", scala.collection.immutable.Nil$.MODULE$.$colon$colon(place));
        seen.put(tasks, Boolean.TRUE);
    }
    if (Boolean.TRUE.equals(seen.get(tasks))) fileAll(tasks);
}

/** Let tasks without state that wait for the executor `lost`, or ran there, run anywhere. */
private void release(org.apache.spark.scheduler.TaskSetManager tasks, String lost) throws Exception {
    boolean any = false;
    for (int index = 0; index < tasks.tasks().length; index++) {
        if (hostAmong(tasks, index, lost) == null) continue;
        set(tasks.tasks()[index], "preferredLocs", scala.collection.immutable.Nil$.MODULE$);
        any = true;
    }
    if (any) fileAll(tasks);
}

/** File the waiting tasks of a stage anew, by what they prefer. After one wait they run anywhere. */
private static void fileAll(org.apache.spark.scheduler.TaskSetManager tasks) {
    org.apache.spark.scheduler.PendingTasksByLocality pending = tasks.pendingTasks();
    pending.forExecutor().clear();
    pending.forHost().clear();
    pending.forRack().clear();
    pending.noPrefs().clear();
    pending.all().clear();
    for (int index = tasks.tasks().length - 1; index >= 0; index--) // the last one filed runs first
        if (isWaiting(tasks, index)) tasks.addPendingTask(index, false, false);
    tasks.recomputeLocality();
    long[] waits = tasks.localityWaits();
    for (int level = 1; level < waits.length; level++) waits[level] = 0L;
}

/** Return true if a stage keeps no state, every earlier one of its job does, and the job keeps the run's state, if any. */
private boolean isFirstWithoutState(org.apache.spark.scheduler.TaskSetManager manager) {
    org.apache.spark.scheduler.TaskSet tasks = manager.taskSet();
    org.apache.spark.scheduler.DAGScheduler stages = context.dagScheduler();
    scala.Option job = stages.jobIdToStageIds().get(Integer.valueOf(tasks.priority()));
    if (job.isEmpty()) return false;
    boolean stateless = false, state = stageOf(manager) == null;
    scala.collection.Iterator ids = ((scala.collection.mutable.HashSet) job.get()).iterator();
    while (ids.hasNext()) {
        Integer id = (Integer) ids.next();
        scala.Option stage = stages.stageIdToStage().get(id);
        if (stage.isEmpty()) continue;
        boolean keeps = keepsState(((org.apache.spark.scheduler.Stage) stage.get()).rdd(), new java.util.HashSet());
        state |= keeps;
        if (id.intValue() == tasks.stageId()) stateless = !keeps;
        else if (!keeps && id.intValue() < tasks.stageId()) return false;
    }
    return stateless && state;
}

private static boolean keepsState(org.apache.spark.rdd.RDD rdd, java.util.Set visited) {
    if (!visited.add(Integer.valueOf(rdd.id()))) return false;
    if (rdd.getClass().getSimpleName().startsWith("StateStore")) return true;
    scala.collection.Seq inputs = rdd.dependencies();
    for (int i = 0; i < inputs.size(); i++) {
        org.apache.spark.Dependency input = (org.apache.spark.Dependency) inputs.apply(i);
        if (!(input instanceof org.apache.spark.ShuffleDependency) && keepsState(input.rdd(), visited)) return true;
    }
    return false;
}

/** Tasks moved before slots were offered, since the last call. */
private int movedSubmitted() {
    synchronized (scheduler()) {
        int count = movedSubmitted;
        movedSubmitted = 0;
        return count;
    }
}

/** State partitions and successors of the run of `tasks`; null if none. Stages of one run have the same neighbours. */
private String[] stageOf(org.apache.spark.scheduler.TaskSetManager tasks) {
    java.util.Properties properties = tasks.taskSet().properties();
    String run = properties == null ? null : properties.getProperty("spark.jobGroup.id");
    String[][] all = stages;
    for (int i = 0; i < all.length; i++) if (all[i][0].equals(run)) return all[i];
    return null;
}

/**
 * Mark the tasks of `stage` as opening state of `run`, like jobs that load state ahead: they may start before the
 * coordinator knows their new places.
 */
private static void mark(org.apache.spark.scheduler.TaskSet stage, String run) throws Exception {
    if (run.equals(stage.properties().getProperty("elastream.opens"))) return;
    java.util.Properties marked = (java.util.Properties) stage.properties().clone(); // readers of the old ones are safe
    marked.setProperty("elastream.opens", run);
    set(stage, "properties", marked);
}

private static void set(Object on, String field, Object value) throws Exception {
    java.lang.reflect.Field member = on.getClass().getDeclaredField(field);
    member.setAccessible(true);
    member.set(on, value);
}

/** Let a task wait for the first living successor of its state partition when it is requeued; return false without one. */
private boolean prefer(org.apache.spark.scheduler.TaskSetManager tasks, int index, String[] stage, java.util.Map living)
        throws Exception {
    int field = tasks.tasks()[index].partitionId() + 3;
    String target = field < stage.length ? successor(stage[field], living) : null;
    if (target == null) return false;
    Object place = new org.apache.spark.scheduler.ExecutorCacheTaskLocation(hostOf(target), target);
    set(tasks.tasks()[index], "preferredLocs", scala.collection.immutable.Nil$.MODULE$.$colon$colon(place));
    mark(tasks.taskSet(), stage[0]);
    return true;
}

/** Spread the first batch of each query that starts from now on over these executors (ids by commas), in their order. */
public void spread(String executors) {
    first = executors.length() == 0 ? new String[0] : executors.split(",");
}

/** Name the executors of a new run's state partitions, before its first batch asks the coordinator. */
public void onOtherEvent(org.apache.spark.scheduler.SparkListenerEvent event) {
    if (!(event instanceof org.apache.spark.sql.streaming.StreamingQueryListener.QueryStartedEvent)) return;
    Object query =
        queries.get(((org.apache.spark.sql.streaming.StreamingQueryListener.QueryStartedEvent) event).id());
    try {
        if (query != null) spreadFirst((org.apache.spark.sql.execution.streaming.runtime.StreamExecution) query);
    } catch (Throwable thrown) { } // Spark alone spreads it
}

private void spreadFirst(org.apache.spark.sql.execution.streaming.runtime.StreamExecution query) throws Exception {
    java.util.List living = new java.util.ArrayList();
    for (int i = 0; i < first.length; i++) if (lives(first[i], "")) living.add(first[i]);
    boolean[] joins = new boolean[1];
    int count = stateful(query.analyzedPlan(), joins), partitions = width(query);
    if (living.size() < 2 || count == 0) return;
    StringBuilder operators = new StringBuilder();
    for (int i = 0; i < count; i++) operators.append(i == 0 ? "" : ";").append(i).append(":default").append(joins[0] ? JOIN : "");
    String root = new org.apache.hadoop.fs.Path(query.resolvedCheckpointRoot(), "state").toString();
    String[] stage = {query.runId().toString(), root, operators.toString()};
    String[] each = operators(stage);
    for (int partition = 0; partition < partitions; partition++) {
        // The code that restarts a query may have placed it.
        if (coordinator.getLocation(provider(stage, each[0], partition, 0)).isDefined()) continue;
        report(stage, partition + 3, (String) living.get((int) ((long) partition * living.size() / partitions)));
    }
}

/** Operators with state of `plan`; sets `joins` if one is a join. */
private static int stateful(org.apache.spark.sql.catalyst.plans.logical.LogicalPlan plan, boolean[] joins) {
    String name = plan.getClass().getSimpleName();
    int count = plan.isStreaming() && STATEFUL.contains(" " + name + " ") ? 1 : 0;
    if (count > 0 && name.equals("Join")) joins[0] = true;
    scala.collection.immutable.Seq children = plan.children();
    for (int i = 0; i < children.size(); i++)
        count += stateful((org.apache.spark.sql.catalyst.plans.logical.LogicalPlan) children.apply(i), joins);
    return count;
}

/** State partitions of a query: those of its newest offsets, else of its session. */
private static int width(org.apache.spark.sql.execution.streaming.runtime.StreamExecution query) throws Exception {
    String name = "spark.sql.shuffle.partitions";
    org.apache.hadoop.fs.Path offsets = new org.apache.hadoop.fs.Path(query.resolvedCheckpointRoot(), "offsets");
    org.apache.hadoop.fs.FileSystem files =
        offsets.getFileSystem(query.sparkSession().sparkContext().hadoopConfiguration());
    long newest = -1L;
    if (files.exists(offsets)) {
        org.apache.hadoop.fs.FileStatus[] all = files.listStatus(offsets);
        for (int i = 0; i < all.length; i++)
            if (all[i].getPath().getName().matches("[0-9]+"))
                newest = Math.max(newest, Long.parseLong(all[i].getPath().getName()));
    }
    if (newest >= 0L) {
        java.io.BufferedReader reader = new java.io.BufferedReader(new java.io.InputStreamReader(
            files.open(new org.apache.hadoop.fs.Path(offsets, "" + newest)), "UTF-8"));
        try {
            reader.readLine();
            java.util.regex.Matcher found =
                java.util.regex.Pattern.compile("\"" + name + "\":\"([0-9]+)\"").matcher(reader.readLine());
            if (found.find()) return Integer.parseInt(found.group(1));
        } finally {
            reader.close();
        }
    }
    return Integer.parseInt(query.sparkSessionForStream().conf().get(name));
}

/**
 * Replace the successors. A line per group of stateful operators that share tasks: "run root operator:store,store;...",
 * then by partition "executor,executor", nearest first; by tabs.
 */
public void follow(String lines) {
    String[] all = lines.length() == 0 ? new String[0] : lines.split("\n");
    String[][] parsed = new String[all.length][];
    for (int i = 0; i < all.length; i++) parsed[i] = all[i].split("\t", -1);
    stages = parsed;
}

/**
 * Losses since the last call, oldest first: lines "executor epochMilliseconds reason tookMicroseconds waiting fault" by
 * tabs, then a field per moved partition, "run:operators:partition:executor". waiting: tasks that waited for the executor
 * and have a new place. fault: what failed, and why.
 */
public String losses() {
    synchronized (losses) {
        String lines = losses.toString();
        losses.setLength(0);
        return lines;
    }
}

public void onExecutorRemoved(org.apache.spark.scheduler.SparkListenerExecutorRemoved removed) {
    long began = System.nanoTime();
    StringBuilder moved = new StringBuilder();
    int tasks = 0;
    String fault = readdressFault, then = fault.length() == 0 ? "" : "; ";
    readdressFault = "";
    try {
        tasks = movedSubmitted();
        repoint(removed.executorId(), moved);
    } catch (Throwable thrown) {
        fault += then + "state partitions: " + thrown;
        then = "; ";
    }
    try {
        tasks += moveWaiting(removed.executorId());
    } catch (Throwable thrown) {
        fault += then + "waiting tasks: " + thrown;
    }
    lost.add(removed.executorId());
    recentUntil = System.nanoTime() + RECENT_NS;
    note(removed.executorId(), removed.time(), removed.reason(), began, tasks, fault, moved.toString());
}

/** Move tasks of a stage that was being submitted when the executor was lost: its first tasks start, others still wait. */
public void onTaskStart(org.apache.spark.scheduler.SparkListenerTaskStart started) {
    if (lost.isEmpty()) return;
    if (System.nanoTime() > recentUntil) {
        lost.clear();
        assigned.clear();
    }
    for (int i = 0; i < lost.size(); i++) {
        long began = System.nanoTime();
        int tasks = i == 0 ? movedSubmitted() : 0;
        String fault = "";
        try {
            tasks += moveWaiting((String) lost.get(i));
        } catch (Throwable thrown) {
            fault = "waiting tasks: " + thrown;
        }
        if (tasks > 0 || fault.length() > 0) {
            note((String) lost.get(i), System.currentTimeMillis(), "a stage was being submitted", began, tasks, fault, "");
        }
    }
}

/**
 * Rerun stages that lack a lost executor's shuffle files at once. Spark waits 200 ms for more failures, which tell nothing
 * new: it has forgotten all of those files already. Its own message then finds nothing to do.
 */
public void onTaskEnd(org.apache.spark.scheduler.SparkListenerTaskEnd ended) {
    if (lost.isEmpty() || !(ended.reason() instanceof org.apache.spark.FetchFailed)) return;
    String attempt = ended.stageId() + "." + ended.stageAttemptId();
    if (attempt.equals(resubmitted)) return;
    resubmitted = attempt;
    try {
        reportAgain();
        context.dagScheduler().eventProcessLoop().post(org.apache.spark.scheduler.ResubmitFailedStages$.MODULE$);
    } catch (Throwable thrown) {
        note("", System.currentTimeMillis(), "a stage failed", System.nanoTime(), 0, "failed stages: " + thrown, "");
    }
}

private void note(String executor, long at, String reason, long began, int tasks, String fault, String moved) {
    synchronized (losses) {
        losses.append(executor).append('\t').append(at).append('\t').append(line(reason)).append('\t')
            .append((System.nanoTime() - began) / 1000L).append('\t').append(tasks).append('\t').append(line(fault))
            .append(moved).append('\n');
    }
}

/** Report each state partition at `lost` at its first living successor, else where fewest are. */
private void repoint(String lost, StringBuilder moved) {
    String[][] all = stages;
    java.util.Map load = living(lost);
    if (load.isEmpty()) return;
    java.util.List orphaned = new java.util.ArrayList();
    for (int i = 0; i < all.length; i++) {
        for (int p = 3; p < all[i].length; p++) {
            scala.Option at = coordinator.getLocation(provider(all[i], operators(all[i])[0], p - 3, 0));
            if (at.isEmpty()) continue;
            String executor = executorOf((String) at.get());
            if (executor.equals(lost)) orphaned.add(new int[] {i, p});
            else if (load.containsKey(executor)) count(load, executor);
        }
    }
    for (int g = 0; g < orphaned.size(); g++) {
        int[] which = (int[]) orphaned.get(g);
        String[] stage = all[which[0]];
        String target = chooseTarget(stage[which[1]], load);
        count(load, target);
        report(stage, which[1], target);
        assigned.add(new Object[] {stage, Integer.valueOf(which[1]), target});
        moved.append('\t').append(stage[0]).append(':').append(ids(operators(stage))).append(':').append(which[1] - 3)
            .append(':').append(target);
    }
}

/** Let the partition in field `field` of `stage` run at `successor`. */
private void report(String[] stage, int field, String target) {
    String[] operators = operators(stage);
    for (int o = 0; o < operators.length; o++) {
        for (int s = 0; s < stores(operators[o]).length; s++) {
            coordinator.reportActiveInstance(provider(stage, operators[o], field - 3, s), hostOf(target), target,
                (scala.collection.immutable.Seq) scala.collection.immutable.Nil$.MODULE$);
        }
    }
}

/**
 * Report partitions at their successors again. Without other waiting tasks, Spark ran the lost ones anywhere before its
 * event: these opened their state there, then failed without shuffle files.
 */
private void reportAgain() {
    for (int i = 0; i < assigned.size(); i++) {
        Object[] each = (Object[]) assigned.get(i);
        String[] stage = (String[]) each[0];
        int field = ((Integer) each[1]).intValue();
        scala.Option at = coordinator.getLocation(provider(stage, operators(stage)[0], field - 3, 0));
        boolean elsewhere = at.isDefined() && !executorOf((String) at.get()).equals(each[2]);
        if (elsewhere && lives((String) each[2], "")) report(stage, field, (String) each[2]);
    }
}

/** Living executors except `lost`, each with a count of 0 partitions. */
private java.util.Map living(String lost) {
    java.util.Map executors = new java.util.TreeMap();
    scala.collection.Iterator all = client().getExecutorIds().iterator();
    while (all.hasNext()) {
        String executor = (String) all.next();
        if (lives(executor, lost)) executors.put(executor, Integer.valueOf(0));
    }
    return executors;
}

/** Return the first living one of `successors`; null if none. */
private static String successor(String successors, java.util.Map living) {
    String[] each = successors.split(",");
    for (int i = 0; i < each.length; i++) if (living.containsKey(each[i])) return each[i];
    return null;
}

private static String chooseTarget(String successors, java.util.Map load) {
    String first = successor(successors, load);
    if (first != null) return first;
    String least = null;
    for (java.util.Iterator names = load.keySet().iterator(); names.hasNext();) {
        String name = (String) names.next();
        if (least == null || ((Integer) load.get(name)).intValue() < ((Integer) load.get(least)).intValue()) least = name;
    }
    return least;
}

private static void count(java.util.Map load, String executor) {
    load.put(executor, Integer.valueOf(((Integer) load.get(executor)).intValue() + 1));
}

/**
 * Move the tasks that wait for `lost` to the place of their state now, or to none.
 * The scheduler's lock is held while its queues are read and written, not in between, when the coordinator is asked.
 */
private int moveWaiting(String lost) {
    org.apache.spark.scheduler.TaskSchedulerImpl scheduler = scheduler();
    java.util.List waiters = waiting(java.util.Collections.singletonList(lost));
    if (waiters.isEmpty()) return 0;
    java.util.List places = new java.util.ArrayList();
    for (int i = 0; i < waiters.size(); i++) places.add(places((Waiting) waiters.get(i)));
    int filed = 0;
    synchronized (scheduler) {
        for (int i = 0; i < waiters.size(); i++)
            if (((Waiting) waiters.get(i)).file(scheduler, (java.util.List) places.get(i))) filed++;
    }
    context.schedulerBackend().reviveOffers();
    return filed;
}

/** A task of a running stage that waits for executor `lost`. host: its host; null if another place is named. */
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

    /** Let it wait for one of `places`, or for none. Needs the scheduler's lock; returns true if it still waited. */
    boolean file(org.apache.spark.scheduler.TaskSchedulerImpl scheduler, java.util.List places) {
        if (tasks.isZombie() || !isWaiting(tasks, index)) return false;
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
        if (!book.contains(place)) book.put(place, new scala.collection.mutable.ArrayBuffer());
        ((scala.collection.mutable.Growable) book.get(place).get()).addOne(index);
    }
}

/** Tasks of running stages that wait for one of the executors `lost`, each a `Waiting`. */
private java.util.List waiting(java.util.List lost) {
    org.apache.spark.scheduler.TaskSchedulerImpl scheduler = scheduler();
    java.util.List waiters = new java.util.ArrayList();
    synchronized (scheduler) {
        scala.collection.mutable.ArrayBuffer all = scheduler.rootPool().getSortedTaskSetQueue();
        for (int i = 0; i < all.size(); i++) {
            org.apache.spark.scheduler.TaskSetManager tasks = (org.apache.spark.scheduler.TaskSetManager) all.apply(i);
            if (!tasks.isZombie()) for (int l = 0; l < lost.size(); l++) waiting(tasks, (String) lost.get(l), waiters);
        }
    }
    return waiters;
}

private static void waiting(org.apache.spark.scheduler.TaskSetManager tasks, String lost, java.util.List waiters) {
    scala.Option there = tasks.pendingTasks().forExecutor().get(lost);
    if (there.isEmpty()) return;
    scala.collection.mutable.ArrayBuffer indices = (scala.collection.mutable.ArrayBuffer) there.get();
    for (int k = 0; k < indices.size(); k++) {
        int index = ((Integer) indices.apply(k)).intValue();
        if (isWaiting(tasks, index)) waiters.add(new Waiting(tasks, index, lost, hostAmong(tasks, index, lost)));
    }
}

private static boolean isWaiting(org.apache.spark.scheduler.TaskSetManager tasks, int index) {
    return !tasks.successful()[index] && tasks.copiesRunning()[index] == 0;
}

/** Return the host of executor `lost` if task `index` prefers it. */
private static String hostAmong(org.apache.spark.scheduler.TaskSetManager tasks, int index, String lost) {
    scala.collection.immutable.Seq preferred = tasks.tasks()[index].preferredLocations();
    for (int i = 0; i < preferred.size(); i++) {
        if (!(preferred.apply(i) instanceof org.apache.spark.scheduler.ExecutorCacheTaskLocation)) continue;
        org.apache.spark.scheduler.ExecutorCacheTaskLocation place =
            (org.apache.spark.scheduler.ExecutorCacheTaskLocation) preferred.apply(i);
        if (place.executorId().equals(lost)) return place.host();
    }
    return null;
}

/** Living places where a task would go if its stage were submitted now; empty if unknown. */
private java.util.List places(Waiting waiter) {
    java.util.List places = new java.util.ArrayList();
    org.apache.spark.scheduler.DAGScheduler stages = context.dagScheduler();
    scala.Option stage = stages.stageIdToStage().get(Integer.valueOf(waiter.tasks.stageId()));
    if (stage.isEmpty()) return places;
    scala.collection.immutable.Seq all = stages.getPreferredLocs(
        ((org.apache.spark.scheduler.Stage) stage.get()).rdd(), waiter.tasks.tasks()[waiter.index].partitionId());
    for (int i = 0; i < all.size(); i++) {
        if (!(all.apply(i) instanceof org.apache.spark.scheduler.ExecutorCacheTaskLocation)) continue;
        String executor = ((org.apache.spark.scheduler.ExecutorCacheTaskLocation) all.apply(i)).executorId();
        if (lives(executor, waiter.lost)) places.add(all.apply(i));
    }
    return places;
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

/** Parse the executor of the coordinator's location "executor_HOST_ID". */
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
