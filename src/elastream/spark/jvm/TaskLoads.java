// What the tasks of a query's stages cost, batch by batch, out of the driver's status store (which is there with the web
// interface or without). Compiled by driver_side.py, in the Java that Janino knows. Reads only, and keeps nothing.

/**
 * Jobs of the batches of one run of a query that have ended, after batch `told` and at most the newest `limit`:
 *   "J batch endedMilliseconds" a job, those of the batch before the first included, so that rates have a beginning;
 *   "S stage parent,parent rank,rank python tasks" a stage, where ranks count the operators `names` by the age of their
 *   plan nodes, python is 1 where it hands records to Python, and tasks is how many it has, 0 where it was tried again;
 *   "T partition task executor succeeded runMilliseconds waitedMilliseconds cpuNanoseconds records local remote written"
 *   a task of the last stage above, bytes of shuffles. Stages with none of `names` are reported if `senders` is set and a
 *   stage with some reads from them.
 */
public static String loads(Object context, Object execution, String names, long told, int limit, boolean senders) {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    org.apache.spark.sql.execution.streaming.runtime.StreamExecution query =
        (org.apache.spark.sql.execution.streaming.runtime.StreamExecution) execution;
    if (query.lastProgress() == null) return "";
    // With its progress there, a batch has ended: a user's function may make a batch run several jobs.
    long over = query.lastProgress().batchId();
    if (told >= over) return "";
    long first = -1;
    org.apache.spark.status.AppStatusStore store = spark.statusStore();
    int[] jobs = spark.statusTracker().getJobIdsForGroup(query.runId().toString());
    java.util.Arrays.sort(jobs);
    StringBuilder out = new StringBuilder();
    for (int at = jobs.length - 1; at >= 0; at--) {
        try {
            org.apache.spark.status.api.v1.JobData job = store.job(jobs[at]);
            long batch = batchOf(job);
            if (batch > over || !job.completionTime().isDefined()) continue;
            if (first < 0) {
                // Not always the last one in the progress: a query that finds nothing to do makes progress as well.
                if (batch <= told) return "";
                first = Math.max(told + 1, batch - limit + 1);
            }
            if (batch < first - 1) break;
            if (job.status() != org.apache.spark.JobExecutionStatus.SUCCEEDED) continue;
            out.append("J\t").append(batch).append('\t')
                .append(((java.util.Date) job.completionTime().get()).getTime()).append('\n');
            if (batch >= first) stages(store, job, java.util.Arrays.asList(names.split(",")), senders, out);
        } catch (java.util.NoSuchElementException gone) { break; }
    }
    return out.toString();
}

/** Number of the batch in a job's description; above every batch if it has none. */
private static long batchOf(org.apache.spark.status.api.v1.JobData job) {
    if (!job.description().isDefined()) return Long.MAX_VALUE;
    String text = (String) job.description().get();
    int at = text.lastIndexOf("batch = ");
    try { return at < 0 ? Long.MAX_VALUE : Long.parseLong(text.substring(at + 8).trim()); }
    catch (NumberFormatException other) { return Long.MAX_VALUE; }
}

private static void stages(org.apache.spark.status.AppStatusStore store, org.apache.spark.status.api.v1.JobData job,
        java.util.List names, boolean senders, StringBuilder out) {
    java.util.TreeMap holders = new java.util.TreeMap();
    java.util.TreeMap graphs = new java.util.TreeMap();
    java.util.HashMap stageOf = new java.util.HashMap();
    for (int i = 0; i < job.stageIds().size(); i++) {
        Integer stage = (Integer) job.stageIds().apply(i);
        org.apache.spark.ui.scope.RDDOperationGraph graph = store.operationGraphForStage(stage.intValue());
        graphs.put(stage, graph);
        collect(graph.rootCluster(), stage, names, holders);
        scala.collection.Seq rdds = store.lastStageAttempt(stage.intValue()).rddIds();
        for (int j = 0; j < rdds.size(); j++) stageOf.put(rdds.apply(j), stage);
    }
    if (holders.size() != names.size()) return;
    java.util.TreeMap ranks = new java.util.TreeMap();
    int rank = 0;
    for (java.util.Iterator each = holders.values().iterator(); each.hasNext(); rank++) {
        Object[] pair = (Object[]) each.next();
        if (!names.get(rank).equals(pair[0])) return;
        String known = (String) ranks.get(pair[1]);
        ranks.put(pair[1], known == null ? "" + rank : known + "," + rank);
    }
    java.util.TreeSet wanted = new java.util.TreeSet(ranks.keySet());
    for (java.util.Iterator each = ranks.keySet().iterator(); senders && each.hasNext();)
        wanted.addAll(parents((org.apache.spark.ui.scope.RDDOperationGraph) graphs.get(each.next()), stageOf));
    for (java.util.Iterator each = wanted.iterator(); each.hasNext();) {
        Integer stage = (Integer) each.next();
        out.append("S\t").append(stage).append('\t');
        java.util.Iterator above = parents((org.apache.spark.ui.scope.RDDOperationGraph) graphs.get(stage), stageOf).iterator();
        while (above.hasNext()) out.append(above.next()).append(above.hasNext() ? "," : "");
        out.append('\t').append(ranks.containsKey(stage) ? (String) ranks.get(stage) : "").append('\t')
            .append(python(((org.apache.spark.ui.scope.RDDOperationGraph) graphs.get(stage)).rootCluster()) ? 1 : 0).append('\t');
        org.apache.spark.status.api.v1.StageData last = store.lastStageAttempt(stage.intValue());
        out.append(last.attemptId() == 0 ? last.numTasks() : 0).append('\n');
        for (int attempt = last.attemptId(); attempt >= 0; attempt--)
            tasks(store.taskList(stage.intValue(), attempt, Integer.MAX_VALUE), out);
    }
}

/** Plan nodes called one of `names` that the stage runs, by the number of the node: its name and the stage. */
private static void collect(Object cluster, Integer stage, java.util.List names, java.util.TreeMap found) {
    org.apache.spark.ui.scope.RDDOperationCluster scope = (org.apache.spark.ui.scope.RDDOperationCluster) cluster;
    if (scope.id().startsWith("spark_plan_") && names.contains(scope.name()))
        found.put(Integer.valueOf(scope.id().substring(11)), new Object[] {scope.name(), stage});
    scala.collection.Seq children = scope.childClusters();
    for (int i = 0; i < children.size(); i++) collect(children.apply(i), stage, names, found);
}

private static boolean python(Object cluster) {
    org.apache.spark.ui.scope.RDDOperationCluster scope = (org.apache.spark.ui.scope.RDDOperationCluster) cluster;
    boolean found = scope.name().matches(".*(Python|PySpark|Pandas|Arrow).*");
    for (int i = 0; i < scope.childClusters().size() && !found; i++) found = python(scope.childClusters().apply(i));
    return found;
}

private static java.util.TreeSet parents(org.apache.spark.ui.scope.RDDOperationGraph graph, java.util.HashMap stageOf) {
    java.util.TreeSet found = new java.util.TreeSet();
    scala.collection.Seq edges = graph.incomingEdges();
    for (int i = 0; i < edges.size(); i++) {
        Object stage = stageOf.get(Integer.valueOf(((org.apache.spark.ui.scope.RDDOperationEdge) edges.apply(i)).fromId()));
        if (stage != null) found.add(stage);
    }
    return found;
}

private static void tasks(scala.collection.immutable.Seq all, StringBuilder out) {
    for (int i = 0; i < all.size(); i++) {
        org.apache.spark.status.api.v1.TaskData task = (org.apache.spark.status.api.v1.TaskData) all.apply(i);
        if (!task.taskMetrics().isDefined()) continue;
        org.apache.spark.status.api.v1.TaskMetrics spent = (org.apache.spark.status.api.v1.TaskMetrics) task.taskMetrics().get();
        org.apache.spark.status.api.v1.ShuffleReadMetrics read = spent.shuffleReadMetrics();
        out.append("T\t").append(task.partitionId()).append('\t').append(task.taskId()).append('\t')
            .append(task.executorId()).append('\t').append("SUCCESS".equals(task.status()) ? 1 : 0).append('\t')
            .append(spent.executorRunTime() + spent.executorDeserializeTime()).append('\t')
            .append(read.fetchWaitTime()).append('\t')
            .append(spent.executorCpuTime() + spent.executorDeserializeCpuTime()).append('\t')
            .append(read.recordsRead()).append('\t').append(read.localBytesRead()).append('\t')
            .append(read.remoteBytesRead()).append('\t').append(spent.shuffleWriteMetrics().bytesWritten()).append('\n');
    }
}
