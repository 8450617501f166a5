// Uses of each executor and their users: running tasks, shuffle files of jobs under way, cached blocks. A SparkListener,
// compiled by executor_use.py in Janino's Java (no lambdas, no inference). The events of jobs name the shuffles that they
// use and the query that they belong to; only the scheduler shows which tasks run now.

private org.apache.spark.SparkContext context;
private java.util.Map queries;
private final java.util.HashMap claims = new java.util.HashMap(); // shuffle id: {"job N" or "sql N", query, label}
private final java.util.HashMap busy = new java.util.HashMap(); // "executor<TAB>query": milliseconds of ended tasks
private final java.util.LinkedHashMap stageQuery = new java.util.LinkedHashMap();

private static final int MAX_STAGES = 2000; // tasks of a stage end soon after it
private static final String QUERY = "sql.streaming.queryId";

/** Fail now if this Spark lacks what is used later. `queries`: all running streaming queries, by id. */
public void begin(Object context, Object queries) {
    this.context = (org.apache.spark.SparkContext) context;
    this.queries = (java.util.Map) queries;
    use();
}

/** Listen in a queue of its own, behind no other listener. */
public void listen() {
    context.listenerBus().addToQueue(this, "elastream-use");
    try {
        claimEarlier();
    } catch (RuntimeException changed) { } // its thread changes the scheduler's tables meanwhile
}

/** Claim the shuffles of jobs that began before this listener. */
private void claimEarlier() {
    scala.collection.Iterator all = context.dagScheduler().shuffleIdToMapStage().iterator();
    while (all.hasNext()) {
        scala.Tuple2 pair = (scala.Tuple2) all.next();
        org.apache.spark.scheduler.ShuffleMapStage stage = (org.apache.spark.scheduler.ShuffleMapStage) pair._2();
        scala.Option job = context.dagScheduler().jobIdToActiveJob().get(Integer.valueOf(stage.firstJobId()));
        if (!job.isDefined()) continue;
        java.util.Properties properties = ((org.apache.spark.scheduler.ActiveJob) job.get()).properties();
        claim(pair._1(), stage.firstJobId(), properties, stage.name());
    }
}

public void end() {
    context.listenerBus().removeListener(this);
}

public void onJobStart(org.apache.spark.scheduler.SparkListenerJobStart event) {
    scala.collection.immutable.Seq stages = event.stageInfos();
    for (int i = 0; i < stages.size(); i++) {
        org.apache.spark.scheduler.StageInfo stage = (org.apache.spark.scheduler.StageInfo) stages.apply(i);
        if (stage.shuffleDepId().isDefined())
            claim(stage.shuffleDepId().get(), event.jobId(), event.properties(), stage.name());
    }
}

private void claim(Object shuffle, int job, java.util.Properties properties, String name) {
    String sql = property(properties, "spark.sql.execution.id");
    String owner = sql.length() == 0 ? "job " + job : "sql " + sql;
    synchronized (claims) {
        claims.put(shuffle, new String[] {owner, property(properties, QUERY), label(properties, name)});
    }
}

private void release(String owner) {
    synchronized (claims) {
        java.util.Iterator all = claims.values().iterator();
        while (all.hasNext()) if (((String[]) all.next())[0].equals(owner)) all.remove();
    }
}

public void onJobEnd(org.apache.spark.scheduler.SparkListenerJobEnd event) {
    release("job " + event.jobId());
}

public void onOtherEvent(org.apache.spark.scheduler.SparkListenerEvent event) {
    if (event instanceof org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd)
        release("sql " + ((org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd) event).executionId());
}

public void onStageSubmitted(org.apache.spark.scheduler.SparkListenerStageSubmitted event) {
    synchronized (busy) {
        stageQuery.put(Integer.valueOf(event.stageInfo().stageId()), property(event.properties(), QUERY));
        if (stageQuery.size() > MAX_STAGES) stageQuery.remove(stageQuery.keySet().iterator().next());
    }
}

public void onTaskEnd(org.apache.spark.scheduler.SparkListenerTaskEnd event) {
    synchronized (busy) {
        String query = (String) stageQuery.get(Integer.valueOf(event.stageId()));
        String key = event.taskInfo().executorId() + "\t" + (query == null ? "" : query);
        Long before = (Long) busy.get(key);
        busy.put(key, Long.valueOf((before == null ? 0L : before.longValue()) + event.taskInfo().duration()));
    }
}

public void onExecutorRemoved(org.apache.spark.scheduler.SparkListenerExecutorRemoved event) {
    synchronized (busy) {
        java.util.Iterator keys = busy.keySet().iterator();
        while (keys.hasNext()) if (((String) keys.next()).startsWith(event.executorId() + "\t")) keys.remove();
    }
}

/**
 * Uses of executors, by tabs:
 *   "busy executor query milliseconds" ended tasks since the beginning; query is empty for work of no streaming query
 *   "task executor query label count oldestMilliseconds ended mode" running tasks of a stage. ended: those that have
 *       succeeded. mode: how a query runs whose tasks do not end; else empty
 *   "shuffle executor query label count" shuffle files that a job under way, or the rest of its SQL execution, may read
 *   "cache executor query label count", "checkpoint executor query label count" cached blocks, and local checkpoints, which
 *       cannot be recomputed
 *   "soon label" a query whose tasks never end, or a barrier stage, is about to start tasks and needs the slots there are
 */
public String use() {
    StringBuilder out = new StringBuilder();
    synchronized (busy) {
        java.util.Iterator each = busy.entrySet().iterator();
        while (each.hasNext()) {
            java.util.Map.Entry entry = (java.util.Map.Entry) each.next();
            out.append("busy\t").append(entry.getKey()).append('\t').append(entry.getValue()).append('\n');
        }
    }
    tasks(out);
    shuffleFiles(out);
    blocks(out);
    if (!context.dagScheduler().barrierJobIdToNumTasksCheckFailures().isEmpty()) out.append("soon\ta barrier stage\n");
    return out.toString();
}

/** How a query runs, for people, if its tasks do not end; else empty. */
private String endless(String query) {
    if (query.length() == 0) return "";
    Object each = queries.get(java.util.UUID.fromString(query));
    if (each == null) return "";
    String trigger = String.valueOf(((org.apache.spark.sql.execution.streaming.runtime.StreamExecution) each).trigger());
    if (trigger.startsWith("Continuous")) return "with a continuous trigger";
    return trigger.startsWith("RealTime") ? "in real-time mode" : "";
}

private void tasks(StringBuilder out) {
    org.apache.spark.scheduler.TaskSchedulerImpl scheduler =
        (org.apache.spark.scheduler.TaskSchedulerImpl) context.taskScheduler();
    long now = System.currentTimeMillis();
    java.util.IdentityHashMap stages = new java.util.IdentityHashMap(); // executor: {tasks, age of the oldest}, by stage
    synchronized (scheduler) {
        java.util.Iterator running = scheduler.taskIdToTaskSetManager().entrySet().iterator();
        while (running.hasNext()) {
            java.util.Map.Entry each = (java.util.Map.Entry) running.next();
            org.apache.spark.scheduler.TaskSetManager set = (org.apache.spark.scheduler.TaskSetManager) each.getValue();
            scala.Option info = set.taskInfos().get(each.getKey());
            if (!info.isDefined()) continue;
            org.apache.spark.scheduler.TaskInfo task = (org.apache.spark.scheduler.TaskInfo) info.get();
            java.util.TreeMap executors = (java.util.TreeMap) stages.get(set);
            if (executors == null) stages.put(set, executors = new java.util.TreeMap());
            long[] sum = (long[]) executors.get(task.executorId());
            if (sum == null) executors.put(task.executorId(), sum = new long[2]);
            sum[0]++;
            sum[1] = Math.max(sum[1], now - task.launchTime());
        }
    }
    java.util.HashSet active = new java.util.HashSet();
    java.util.Iterator all = stages.entrySet().iterator();
    while (all.hasNext()) {
        java.util.Map.Entry stage = (java.util.Map.Entry) all.next();
        org.apache.spark.scheduler.TaskSetManager set = (org.apache.spark.scheduler.TaskSetManager) stage.getKey();
        java.util.Properties properties = set.taskSet().properties();
        String query = property(properties, QUERY), kind = endless(query);
        active.add(query);
        String name = "";
        try {
            name = context.statusStore().lastStageAttempt(set.stageId()).name();
        } catch (java.util.NoSuchElementException gone) { }
        java.util.Iterator each = ((java.util.TreeMap) stage.getValue()).entrySet().iterator();
        while (each.hasNext()) {
            java.util.Map.Entry entry = (java.util.Map.Entry) each.next();
            long[] sum = (long[]) entry.getValue();
            out.append("task\t").append(entry.getKey()).append('\t').append(query).append('\t')
                .append(label(properties, name)).append('\t').append(sum[0]).append('\t').append(sum[1]).append('\t')
                .append(set.tasksSuccessful()).append('\t').append(kind).append('\n');
        }
    }
    java.util.Iterator ids = queries.keySet().iterator();
    while (ids.hasNext()) {
        String id = String.valueOf(ids.next());
        Object query = queries.get(java.util.UUID.fromString(id));
        if (query == null || active.contains(id) || endless(id).length() == 0) continue;
        String name = ((org.apache.spark.sql.streaming.StreamingQuery) query).name();
        out.append("soon\t").append(line(name == null ? "query " + id : name)).append('\n');
    }
}

private void shuffleFiles(StringBuilder out) {
    if (context.conf().getBoolean("spark.shuffle.service.enabled", false)) return; // they outlive executors
    java.util.HashMap now;
    synchronized (claims) {
        now = new java.util.HashMap(claims);
    }
    // Not through SparkEnv: one of its methods needs a library that PySpark lacks.
    org.apache.spark.MapOutputTrackerMaster tracker =
        ((org.apache.spark.scheduler.TaskSchedulerImpl) context.taskScheduler()).mapOutputTracker();
    java.util.TreeMap files = new java.util.TreeMap();
    java.util.Iterator each = now.entrySet().iterator();
    while (each.hasNext()) {
        java.util.Map.Entry entry = (java.util.Map.Entry) each.next();
        scala.Option status = tracker.shuffleStatuses().get(entry.getKey());
        if (!status.isDefined()) continue;
        String[] claim = (String[]) entry.getValue();
        org.apache.spark.scheduler.MapStatus[] outputs = ((org.apache.spark.ShuffleStatus) status.get()).mapStatuses();
        for (int i = 0; i < outputs.length; i++) {
            org.apache.spark.scheduler.MapStatus output = outputs[i];
            if (output == null || output.location() == null) continue;
            add(files, "shuffle\t" + output.location().executorId() + "\t" + claim[1] + "\t" + claim[2]);
        }
    }
    print(files, out);
}

/** Cached blocks, and those of local checkpoints. */
private void blocks(StringBuilder out) {
    scala.collection.immutable.Seq all = context.statusStore().executorList(true);
    java.util.TreeMap blocks = new java.util.TreeMap();
    for (int i = 0; i < all.size(); i++) {
        org.apache.spark.status.api.v1.ExecutorSummary each = (org.apache.spark.status.api.v1.ExecutorSummary) all.apply(i);
        if (each.rddBlocks() > 0) blocks.put("cache\t" + each.id() + "\t\tcached data", Integer.valueOf(each.rddBlocks()));
    }
    if (blocks.isEmpty()) return;
    java.util.HashSet checkpoints = new java.util.HashSet();
    scala.collection.Iterator rdds = context.getPersistentRDDs().valuesIterator();
    while (rdds.hasNext()) {
        org.apache.spark.rdd.RDD each = (org.apache.spark.rdd.RDD) rdds.next();
        if (each != null && each.isLocallyCheckpointed()) checkpoints.add(Integer.valueOf(each.id()));
    }
    if (!checkpoints.isEmpty()) {
        scala.collection.immutable.Seq stored = context.statusStore().rddList(true);
        for (int i = 0; i < stored.size(); i++) {
            org.apache.spark.status.api.v1.RDDStorageInfo each =
                (org.apache.spark.status.api.v1.RDDStorageInfo) stored.apply(i);
            if (!checkpoints.contains(Integer.valueOf(each.id())) || !each.partitions().isDefined()) continue;
            scala.collection.Seq partitions = (scala.collection.Seq) each.partitions().get();
            for (int k = 0; k < partitions.size(); k++) {
                scala.collection.Seq holders =
                    ((org.apache.spark.status.api.v1.RDDPartitionInfo) partitions.apply(k)).executors();
                for (int h = 0; h < holders.size(); h++)
                    add(blocks, "checkpoint\t" + holders.apply(h) + "\t\ta local checkpoint");
            }
        }
    }
    print(blocks, out);
}

private static void add(java.util.Map counts, String key) {
    Integer before = (Integer) counts.get(key);
    counts.put(key, Integer.valueOf(before == null ? 1 : before.intValue() + 1));
}

/** Lines "kind executor query label count", by tabs. */
private static void print(java.util.Map counts, StringBuilder out) {
    java.util.Iterator all = counts.entrySet().iterator();
    while (all.hasNext()) {
        java.util.Map.Entry entry = (java.util.Map.Entry) all.next();
        out.append(entry.getKey()).append('\t').append(entry.getValue()).append('\n');
    }
}

private static String property(java.util.Properties properties, String name) {
    String value = properties == null ? null : properties.getProperty(name);
    return value == null ? "" : value;
}

/** The first line of a job's description, else the place in the program that it comes from. */
private static String label(java.util.Properties properties, String stage) {
    String text = property(properties, "spark.job.description").split("\n")[0];
    if (text.startsWith("id = ")) text = "query " + text.substring(5);
    return line(text.length() == 0 ? stage : text);
}
