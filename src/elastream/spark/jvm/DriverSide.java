// Reads of the control plane from the driver's JVM, many values a call: one call through the gateway costs as much as all
// methods below. driver_side.py compiles it with Janino, the compiler of Spark's code generator, which has no lambdas and
// no inference: hence the plain loops and casts. The methods keep no state; only `hold` and `snapshot` change Spark's.

/**
 * Stateful operators of a query, by the plan of its last batch. Lines "group operator partitions planId name root
 * store,store", by tabs, after a line "planned"; empty if no plan is known yet.
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

/**
 * Return true if the batch of `last` has its plan. Reading it earlier would create it here, with this thread's settings.
 */
private static boolean planned(
    org.apache.spark.SparkContext spark,
    org.apache.spark.sql.execution.streaming.runtime.StreamExecution query,
    org.apache.spark.sql.execution.streaming.runtime.IncrementalExecution last) {
    long batch = last.currentBatchId();
    if (query.lastProgress() != null && batch <= query.lastProgress().batchId()) return true;
    if (!last.tracker().phases().contains("planning")) return false;
    // Batches without pauses never appear as ended; their jobs show that they are planned.
    int[] jobs = spark.statusTracker().getJobIdsForGroup(query.runId().toString());
    for (int i = 0; i < jobs.length; i++) {
        try {
            scala.Option description = spark.statusStore().job(jobs[i]).description();
            if (description.isDefined() && ((String) description.get()).endsWith("batch = " + batch)) return true;
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
 * CPU nanoseconds of the answering thread, below 0 if this JVM does not count them. One thread here answers all calls of
 * one thread of Python.
 */
public static long spent() {
    return java.lang.management.ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
}

/** Coordinator's location of a state store, a line per partition: "executor_HOST_ID", empty if never loaded. */
public static String locations(Object coordinator, String root, String run, long operator, String store, int partitions) {
    org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorRef reference =
        (org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorRef) coordinator;
    java.util.UUID runId = java.util.UUID.fromString(run);
    StringBuilder out = new StringBuilder();
    for (int i = 0; i < partitions; i++) {
        scala.Option location = reference.getLocation(new org.apache.spark.sql.execution.streaming.state.StateStoreProviderId(
            new org.apache.spark.sql.execution.streaming.state.StateStoreId(root, operator, i, store), runId));
        if (location.isDefined()) out.append((String) location.get());
        out.append('\n');
    }
    return out.toString();
}

/**
 * Let the next commit of a state store write a snapshot, as Spark does once snapshots lag (since 4.2). Empty if this Spark,
 * or a setting, forbids it. The request lasts until the next batch ends; a batch that has opened the store already ignores
 * it.
 */
public static String snapshot(Object coordinator, Object provider) {
    org.apache.spark.sql.execution.streaming.state.StateStoreProviderId store =
        (org.apache.spark.sql.execution.streaming.state.StateStoreProviderId) provider;
    String prefix = "org$apache$spark$sql$execution$streaming$state$StateStoreCoordinator$$";
    java.util.Map endpoints = (java.util.Map) kept(
        kept(kept(kept(coordinator, "rpcEndpointRef"), "nettyEnv"), "dispatcher"), "endpointRefs");
    if (endpoints == null) return "";
    for (java.util.Iterator all = endpoints.keySet().iterator(); all.hasNext();) {
        Object each = all.next();
        Object lagging = member(each, prefix + "snapshotUploadLaggingStores");
        if (lagging == null || !Boolean.TRUE.equals(member(each, prefix + "forceSnapshotUploadOnLag"))) continue;
        // Spark replaces the set when a batch ends. Only its own thread may change the map.
        scala.Option stores = ((scala.collection.mutable.HashMap) lagging).get(store.queryRunId());
        if (stores.isEmpty()) return ""; // no batch has ended
        ((scala.collection.mutable.HashSet) stores.get()).add(store);
        return "asked\n";
    }
    return "";
}

/**
 * Executors: lines "id host:port slots busyMilliseconds leaving active", by tabs. leaving: 1 if Spark gives it no new
 * tasks. active: running tasks.
 */
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
 * Put the warm-up tasks of `executor` (marked by their job's property) first, and restart their locality wait. An executor
 * takes tasks seconds after it registers. Without the wait they would run elsewhere; without priority, behind a batch.
 * Does nothing if the executor is dead.
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
            if (properties == null || !executor.equals(properties.getProperty(property))) continue;
            since.setLong(tasks, System.currentTimeMillis());
            // Lowest first; others have their job's number. Without a wait, these run on any executor.
            if (spark.conf().getTimeAsSeconds("spark.locality.wait", "3s") > 0) tasks.priority_$eq(-1);
        }
    }
    return "";
}

/** Why an executor is gone, one line; empty if Spark does not know. */
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
 * Running streaming queries: lines "id run batch idle mode name", by tabs. batch: the newest ended, -1 before the first.
 * idle: 1 if no batch runs and no data waits. mode: how it runs if its tasks do not end with a batch. name: empty if none.
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
            .append('\t').append(idle ? 1 : 0).append('\t')
            .append(trigger.startsWith("RealTime") ? "in real-time mode" : "")
            .append(trigger.startsWith("Continuous") ? "with a continuous trigger" : "").append('\t').append(line(each.name())).append('\n');
    }
    return out.toString();
}

/**
 * "1" if tasks of any of these queries may run Python, by the plans of their last batches, else "0"; empty while a batch is
 * being planned. "1" also without a query, before a query's first batch, and for foreachBatch.
 */
public static String python(Object context, Object all) {
    java.util.Iterator queries = ((java.util.Map) all).values().iterator();
    String answer = queries.hasNext() ? "0\n" : "1\n";
    while (queries.hasNext()) {
        org.apache.spark.sql.execution.streaming.runtime.StreamExecution query =
            (org.apache.spark.sql.execution.streaming.runtime.StreamExecution) queries.next();
        org.apache.spark.sql.execution.streaming.runtime.IncrementalExecution last = query.lastExecution();
        if (last == null) return "1\n";
        if (!planned((org.apache.spark.SparkContext) context, query, last)) {
            answer = ""; // another query may have a plan
            continue;
        }
        String text = (last.executedPlan() + " " + query.sink().getClass().getName()).toLowerCase();
        String[] words = {"python", "pandas", "pyspark", "arrow", "foreach"};
        for (int i = 0; i < words.length; i++) if (text.contains(words[i])) return "1\n";
    }
    return answer;
}

/**
 * Batches after `after` that did something, newest first: "id epochMilliseconds rows durations reads observed", by tabs, then
 * each source's progress as JSON. durations: milliseconds of the parts of the trigger, a JSON object. reads: "-" if the plan
 * reads each source once, else a list of the records that each stage without a shuffle before it has read. observed: metrics of the plan, a JSON object by
 * name. Last line: "trigger message planned checkpoint function": the query's trigger and status, the newest planned batch, its
 * checkpoint, and 1 if it hands batches to a function, then "limit number times files" by "|" of each source: what limits its reads (see `limit`), how often the plan
 * has it, and of a file source the glob of names ("?" if its options leave out other files, too).
 */
public static String batches(Object execution, long after) {
    org.apache.spark.sql.execution.streaming.runtime.StreamExecution query =
        (org.apache.spark.sql.execution.streaming.runtime.StreamExecution) execution;
    // Read first: a batch planned in between must not look like two.
    org.apache.spark.sql.execution.streaming.runtime.IncrementalExecution last = query.lastExecution();
    long planned = last == null ? -1L : last.currentBatchId();
    org.apache.spark.sql.streaming.StreamingQueryProgress[] recent = query.recentProgress();
    StringBuilder sources = new StringBuilder();
    // Before its first batch, the plan must not be read: only the query's own thread may make it.
    boolean function = query.sink().getClass().getName().contains("ForeachBatch");
    boolean again = last != null && sources(query, sources) || function;
    java.util.Map reads = again ? reads(query, after) : new java.util.HashMap();
    StringBuilder out = new StringBuilder();
    for (int i = recent.length - 1; i >= 0 && recent[i].batchId() > after; i--) {
        // Otherwise an idle trigger, which shares the id of the next batch.
        if (!recent[i].durationMs().containsKey("addBatch")) continue;
        Object read = reads.get(Long.valueOf(recent[i].batchId()));
        out.append(recent[i].batchId()).append('\t')
            .append(java.time.Instant.parse(recent[i].timestamp()).toEpochMilli()).append('\t')
            .append(recent[i].numInputRows()).append("\t{");
        java.util.Iterator parts = recent[i].durationMs().entrySet().iterator();
        while (parts.hasNext()) {
            java.util.Map.Entry part = (java.util.Map.Entry) parts.next();
            out.append('"').append(part.getKey()).append("\":").append(part.getValue()).append(parts.hasNext() ? "," : "");
        }
        out.append("}\t").append(!again ? "-" : read == null ? "" : line(read.toString())).append("\t{");
        java.util.Iterator names = recent[i].observedMetrics().keySet().iterator();
        while (names.hasNext()) {
            String name = (String) names.next();
            org.apache.spark.sql.Row row = (org.apache.spark.sql.Row) recent[i].observedMetrics().get(name);
            // Foreign observations may have names that JSON must quote; ours have none.
            if (!name.startsWith("elastream ")) continue;
            out.append(out.charAt(out.length() - 1) == '{' ? "\"" : ",\"").append(name).append("\":").append(line(row.json()));
        }
        out.append('}');
        for (int k = 0; k < recent[i].sources().length; k++) out.append('\t').append(line(recent[i].sources()[k].json()));
        out.append('\n');
    }
    out.append(query.trigger()).append('\t').append(line(query.status().message())).append('\t').append(planned)
        .append('\t').append(line(query.resolvedCheckpointRoot())).append('\t').append(function ? 1 : 0);
    return out.append(sources).append('\n').toString();
}

/**
 * State of a query after its newest batch: lines "position tasks rows bytes heap files" of each stateful operator, by tabs,
 * heap as 1, or 0 in RocksDB, -1 in a store that Spark does not have, files in bytes, after a line "lag": milliseconds by which the watermark trails the
 * batch's start, empty without a watermark.
 */
public static String state(Object execution) {
    org.apache.spark.sql.streaming.StreamingQueryProgress last =
        ((org.apache.spark.sql.execution.streaming.runtime.StreamExecution) execution).lastProgress();
    if (last == null) return "";
    StringBuilder out = new StringBuilder();
    Object watermark = last.eventTime().get("watermark");
    long at = watermark == null ? 0L : java.time.Instant.parse((String) watermark).toEpochMilli();
    if (at > 0L) out.append(java.time.Instant.parse(last.timestamp()).toEpochMilli() - at);
    out.append('\n');
    for (int i = 0; i < last.stateOperators().length; i++) {
        org.apache.spark.sql.streaming.StateOperatorProgress each = last.stateOperators()[i];
        int heap = each.customMetrics().containsKey("stateOnCurrentVersionSizeBytes") ? 1
            : each.customMetrics().containsKey("rocksdbPutCount") ? 0 : -1;
        Object files = each.customMetrics().get("rocksdbSstFileSize");
        out.append(i).append('\t').append(each.numShufflePartitions()).append('\t').append(each.numRowsTotal())
            .append('\t').append(each.memoryUsedBytes()).append('\t').append(heap)
            .append('\t').append(files == null ? 0 : files).append('\n');
    }
    return out.toString();
}

/** Append a field per source, in the order of its progress; return true if the plan has one more than once. */
private static boolean sources(
    org.apache.spark.sql.execution.streaming.runtime.StreamExecution query, StringBuilder out) {
    boolean again = false;
    java.util.ArrayList shown = new java.util.ArrayList();
    scala.collection.immutable.Seq leaves = query.logicalPlan().collectLeaves();
    for (int i = 0; i < query.sources().size(); i++) {
        Object source = query.sources().apply(i);
        if (shown.contains(source)) continue;
        shown.add(source);
        int times = 0;
        for (int k = 0; k < leaves.size(); k++)
            if (member(leaves.apply(k), "stream") == source || member(leaves.apply(k), "source") == source) times++;
        again = again || times > 1;
        scala.Option limit = query.uniqueSources().get((org.apache.spark.sql.connector.read.streaming.SparkDataStream) source);
        out.append('\t').append(limit.isDefined() ? limit(limit.get()) : "all|0").append('|').append(Math.max(times, 1))
            .append('|').append(line(files(source)));
    }
    return again;
}

/** The most that one batch reads: "all|0", "rows|N", "files|N", "bytes|N", or "other|0". */
private static String limit(Object limit) {
    if (limit instanceof org.apache.spark.sql.connector.read.streaming.ReadAllAvailable) return "all|0";
    if (limit instanceof org.apache.spark.sql.connector.read.streaming.ReadMaxRows)
        return "rows|" + ((org.apache.spark.sql.connector.read.streaming.ReadMaxRows) limit).maxRows();
    if (limit instanceof org.apache.spark.sql.connector.read.streaming.ReadMaxFiles)
        return "files|" + ((org.apache.spark.sql.connector.read.streaming.ReadMaxFiles) limit).maxFiles();
    Object bytes = member(limit, "maxBytes"); // of a class that Spark 4.0 lacks
    return bytes == null ? "other|0" : "bytes|" + bytes;
}

/** Glob of the names of files that a file source reads; "?" if it has options by which it leaves out others, or is none. */
private static String files(Object source) {
    if (!source.getClass().getSimpleName().equals("FileStreamSource")) return "?";
    try {
        String glob = "";
        scala.collection.Iterator each = ((scala.collection.immutable.Map) kept(source, "options")).iterator();
        while (each.hasNext()) {
            scala.Tuple2 option = (scala.Tuple2) each.next();
            String name = ((String) option._1()).toLowerCase();
            if (name.startsWith("modified") || name.equals("filenameonly") || name.equals("maxfileage")) return "?";
            if (name.equals("pathglobfilter")) glob = (String) option._2();
        }
        return glob;
    } catch (Exception other) { return "?"; }
}

/** Value of the private field `name`, null if there is none. */
private static Object kept(Object object, String name) {
    try {
        java.lang.reflect.Field field = object.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(object);
    } catch (Exception none) { return null; }
}

/** Answer of the method `name` without parameters, null if there is none. */
private static Object member(Object object, String name) {
    try { return object.getClass().getMethod(name, new Class[0]).invoke(object, new Object[0]); }
    catch (Exception none) { return null; }
}

/** Of each batch after `after` a list of the records that each stage without a shuffle before it has read. */
private static java.util.Map reads(org.apache.spark.sql.execution.streaming.runtime.StreamExecution query, long after) {
    java.util.HashMap reads = new java.util.HashMap();
    org.apache.spark.SparkContext spark = query.sparkSession().sparkContext();
    int[] jobs = spark.statusTracker().getJobIdsForGroup(query.runId().toString());
    java.util.Arrays.sort(jobs);
    for (int at = jobs.length - 1; at >= 0; at--) {
        try {
            org.apache.spark.status.api.v1.JobData job = spark.statusStore().job(jobs[at]);
            Long batch = Long.valueOf(batchOf(job));
            if (batch.longValue() <= after) break;
            java.util.ArrayList read = (java.util.ArrayList) reads.get(batch);
            if (read == null) reads.put(batch, read = new java.util.ArrayList());
            for (int i = 0; i < job.stageIds().size(); i++) {
                org.apache.spark.status.api.v1.StageData stage =
                    spark.statusStore().lastStageAttempt(((Integer) job.stageIds().apply(i)).intValue());
                if ("COMPLETE".equals(stage.status().toString()) && stage.shuffleReadBytes() == 0)
                    read.add(Long.valueOf(stage.inputRecords()));
            }
        } catch (java.util.NoSuchElementException gone) { break; }
    }
    return reads;
}
