// What the control plane asks of the driver's JVM, many values at a time: one call through the gateway costs about as much
// as everything below. Compiled by driver_side.py with the compiler that Spark itself generates code with (Janino), which
// knows no lambdas and no inference: hence the plain loops and the casts. Reads only, but for `hold`; nothing here is kept.

/**
 * Stateful operators of a query, by the plan of its last batch: "group operator partitions planId name root store,store" a
 * line, by tabs, behind a line "planned"; nothing where that is not known yet.
 */
public static String stateful(Object context, Object execution) {
    StringBuilder out = new StringBuilder();
    org.apache.spark.sql.execution.streaming.runtime.StreamExecution query =
        (org.apache.spark.sql.execution.streaming.runtime.StreamExecution) execution;
    org.apache.spark.sql.execution.streaming.runtime.IncrementalExecution last = query.lastExecution();
    if (last == null || !planned((org.apache.spark.SparkContext) context, query, last)) return "";
    visit(last.executedPlan(), new int[] {0, 0}, 0, out.append("planned\n"));
    return out.toString();
}

/** Whether the batch of `last` has its plan. Asked for earlier, it would be made here, with the settings of this thread. */
private static boolean planned(
    org.apache.spark.SparkContext spark,
    org.apache.spark.sql.execution.streaming.runtime.StreamExecution query,
    org.apache.spark.sql.execution.streaming.runtime.IncrementalExecution last) {
    long batch = last.currentBatchId();
    if (query.lastProgress() != null && batch <= query.lastProgress().batchId()) return true;
    if (!last.tracker().phases().contains("planning")) return false;
    // A batch that follows another at once has never ended when it is looked at: its jobs show that it is past planning.
    int[] jobs = spark.statusTracker().getJobIdsForGroup(query.runId().toString());
    for (int i = 0; i < jobs.length; i++) {
        try {
            scala.Option said = spark.statusStore().job(jobs[i]).description();
            if (said.isDefined() && ((String) said.get()).endsWith("batch = " + batch)) return true;
        } catch (java.util.NoSuchElementException gone) { }
    }
    return false;
}

private static void visit(org.apache.spark.sql.execution.SparkPlan plan, int[] groups, int group, StringBuilder out) {
    if (plan instanceof org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter) {
        org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter writer =
            (org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter) plan;
        org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo info = writer.getStateInfo();
        out.append(group).append('\t').append(info.operatorId()).append('\t').append(info.numPartitions()).append('\t')
            .append(plan.id()).append('\t').append(plan.nodeName()).append('\t').append(info.checkpointLocation())
            .append('\t').append(writer.stateStoreNames().mkString(",")).append('\n');
    }
    scala.collection.immutable.Seq children = plan.children();
    for (int i = 0; i < children.size(); i++) {
        org.apache.spark.sql.execution.SparkPlan child = (org.apache.spark.sql.execution.SparkPlan) children.apply(i);
        int below = group;
        if (child instanceof org.apache.spark.sql.execution.exchange.Exchange) below = ++groups[0];
        visit(child, groups, below, out);
    }
}

/**
 * CPU nanoseconds that the answering thread has taken so far, less than 0 where this JVM does not count them. All calls of
 * one thread of Python are answered by one thread here.
 */
public static long spent() {
    return java.lang.management.ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
}

/** Where a state store is believed to be, a line a partition, empty where it was never loaded: "executor_HOST_ID". */
public static String locations(Object coordinator, String root, String run, long operator, String store, int partitions) {
    org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorRef asked =
        (org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorRef) coordinator;
    java.util.UUID runId = java.util.UUID.fromString(run);
    StringBuilder out = new StringBuilder();
    for (int i = 0; i < partitions; i++) {
        scala.Option found = asked.getLocation(new org.apache.spark.sql.execution.streaming.state.StateStoreProviderId(
            new org.apache.spark.sql.execution.streaming.state.StateStoreId(root, operator, i, store), runId));
        if (found.isDefined()) out.append((String) found.get());
        out.append('\n');
    }
    return out.toString();
}

/** Executors: "id host:port slots busyMilliseconds leaving active" a line, by tabs; leaving is 1 where Spark gives
 * it nothing new, active its tasks under way. */
public static String executors(Object context) {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    scala.collection.immutable.Seq all = spark.statusStore().executorList(true);
    StringBuilder out = new StringBuilder();
    for (int i = 0; i < all.size(); i++) {
        org.apache.spark.status.api.v1.ExecutorSummary each = (org.apache.spark.status.api.v1.ExecutorSummary) all.apply(i);
        boolean leaving = each.isExcluded() || spark.taskScheduler().getExecutorDecommissionState(each.id()).isDefined();
        out.append(each.id()).append('\t').append(each.hostPort()).append('\t').append(each.totalCores()).append('\t')
            .append(each.totalDuration()).append('\t').append(leaving ? 1 : 0).append('\t').append(each.activeTasks())
            .append('\n');
    }
    return out.toString();
}

/**
 * Have the tasks that are to warm `executor` up, as their job's property says, go on waiting for it, as if they had just begun to:
 * it registers seconds before it takes tasks, and by then they would run elsewhere. Nothing where it does not live.
 */
public static String hold(Object context, String executor, String property) throws Exception {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    if (!((org.apache.spark.ExecutorAllocationClient) spark.schedulerBackend()).isExecutorActive(executor)) return "";
    org.apache.spark.scheduler.TaskSchedulerImpl scheduler =
        (org.apache.spark.scheduler.TaskSchedulerImpl) spark.taskScheduler();
    java.lang.reflect.Field since = org.apache.spark.scheduler.TaskSetManager.class.getDeclaredField("lastLocalityWaitResetTime");
    since.setAccessible(true);
    synchronized (scheduler) {
        scala.collection.mutable.ArrayBuffer all = scheduler.rootPool().getSortedTaskSetQueue();
        for (int i = 0; i < all.size(); i++) {
            org.apache.spark.scheduler.TaskSetManager tasks = (org.apache.spark.scheduler.TaskSetManager) all.apply(i);
            java.util.Properties properties = tasks.taskSet().properties();
            if (properties != null && executor.equals(properties.getProperty(property)))
                since.setLong(tasks, System.currentTimeMillis());
        }
    }
    return "";
}

/** Why an executor is gone, one line; nothing where Spark was not told. */
public static String ending(Object context, String executor) {
    scala.collection.immutable.Seq all = ((org.apache.spark.SparkContext) context).statusStore().executorList(false);
    for (int i = 0; i < all.size(); i++) {
        org.apache.spark.status.api.v1.ExecutorSummary each = (org.apache.spark.status.api.v1.ExecutorSummary) all.apply(i);
        if (each.id().equals(executor) && each.removeReason().isDefined())
            return line((String) each.removeReason().get()) + "\n";
    }
    return "";
}

/**
 * Streaming queries that run: "id run batch idle name" a line, by tabs; batch is the newest that ended, -1 before the first;
 * idle is 1 where none is under way and no data waits; the name is empty where a query has none.
 */
public static String queries(Object all) {
    java.util.Iterator queries = ((java.util.Map) all).values().iterator();
    StringBuilder out = new StringBuilder();
    while (queries.hasNext()) {
        org.apache.spark.sql.streaming.StreamingQuery each = (org.apache.spark.sql.streaming.StreamingQuery) queries.next();
        org.apache.spark.sql.streaming.StreamingQueryProgress last = each.lastProgress();
        boolean idle = !each.status().isTriggerActive() && !each.status().isDataAvailable();
        String trigger =
            String.valueOf(((org.apache.spark.sql.execution.streaming.runtime.StreamExecution) each).trigger());
        out.append(each.id()).append('\t').append(each.runId()).append('\t').append(last == null ? -1 : last.batchId())
            .append('\t').append(idle ? 1 : 0).append('\t').append(trigger.startsWith("RealTime") ? 1 : 0)
            .append('\t').append(line(each.name())).append('\n');
    }
    return out.toString();
}

/**
 * Whether tasks of any of these queries run Python, by the plans of their last batches: "1" or "0", and nothing while the next
 * one is being planned. So it may be where there is no query, where one has had no batch, and where a function of the driver is
 * given each batch.
 */
public static String python(Object context, Object all) {
    java.util.Iterator queries = ((java.util.Map) all).values().iterator();
    String found = queries.hasNext() ? "0\n" : "1\n";
    while (queries.hasNext()) {
        org.apache.spark.sql.execution.streaming.runtime.StreamExecution query =
            (org.apache.spark.sql.execution.streaming.runtime.StreamExecution) queries.next();
        org.apache.spark.sql.execution.streaming.runtime.IncrementalExecution last = query.lastExecution();
        if (last == null) return "1\n";
        if (!planned((org.apache.spark.SparkContext) context, query, last)) {
            found = ""; // unless another says
            continue;
        }
        String text = (last.executedPlan() + " " + query.sink().getClass().getName()).toLowerCase();
        String[] words = {"python", "pandas", "pyspark", "arrow", "foreach"};
        for (int i = 0; i < words.length; i++) if (text.contains(words[i])) return "1\n";
    }
    return found;
}

/**
 * Batches after `seen` that did something, newest first: "id epochMilliseconds rows triggerMilliseconds pollMilliseconds
 * observed" by tabs, and a field more a source, its progress as JSON. pollMilliseconds: what asking the sources for their
 * latest offsets took. observed: metrics that the plan observes, as a JSON object by name. The last line is "trigger message":
 * how the query is triggered, and what it says that it is doing.
 */
public static String batches(Object execution, long seen) {
    org.apache.spark.sql.execution.streaming.runtime.StreamExecution query =
        (org.apache.spark.sql.execution.streaming.runtime.StreamExecution) execution;
    // Before what has ended is read: a batch that is planned in between must not look like two.
    org.apache.spark.sql.execution.streaming.runtime.IncrementalExecution last = query.lastExecution();
    long planned = last == null ? -1L : last.currentBatchId();
    org.apache.spark.sql.streaming.StreamingQueryProgress[] recent = query.recentProgress();
    StringBuilder out = new StringBuilder();
    for (int i = recent.length - 1; i >= 0 && recent[i].batchId() > seen; i--) {
        // Without it this is an idle trigger, which shares the id of the next batch.
        if (!recent[i].durationMs().containsKey("addBatch")) continue;
        out.append(recent[i].batchId()).append('\t')
            .append(java.time.Instant.parse(recent[i].timestamp()).toEpochMilli()).append('\t')
            .append(recent[i].numInputRows()).append('\t').append(recent[i].durationMs().get("triggerExecution"))
            .append('\t').append(recent[i].durationMs().get("latestOffset")).append("\t{");
        java.util.Iterator names = recent[i].observedMetrics().keySet().iterator();
        while (names.hasNext()) {
            String name = (String) names.next();
            org.apache.spark.sql.Row row = (org.apache.spark.sql.Row) recent[i].observedMetrics().get(name);
            // Others' observations may have names that JSON would need quoted; ours have none.
            if (!name.startsWith("elastream ")) continue;
            out.append(out.charAt(out.length() - 1) == '{' ? "\"" : ",\"").append(name).append("\":").append(line(row.json()));
        }
        out.append('}');
        for (int k = 0; k < recent[i].sources().length; k++) out.append('\t').append(line(recent[i].sources()[k].json()));
        out.append('\n');
    }
    out.append(query.trigger()).append('\t').append(line(query.status().message())).append('\t').append(planned);
    return out.append('\n').toString();
}

/** A text as one field of a line. */
private static String line(String text) {
    return text == null ? "" : text.replace('\t', ' ').replace('\n', ' ');
}
