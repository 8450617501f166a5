// Task costs of a query's stages, batch by batch, from the driver's status store (which exists without the web interface,
// too). Compiled by driver_side.py, in Janino's Java. Reads only, keeps nothing.

/**
 * Jobs of ended batches of one run of a query after batch `after`, at most the newest `limit`, by tabs:
 *   "J batch endedMilliseconds" a job, also of the batch before the first, so that rates have a beginning;
 *   "S stage parent,parent rank,rank python tasks" a stage. Ranks count the operators `names` by age of plan nodes; python is
 *   1 if it hands records to Python; tasks is their number, 0 if it was retried;
 *   "T partition task executor succeeded runMilliseconds waitedMilliseconds cpuNanoseconds records local remote written"
 *   a task of the last stage above, with shuffle bytes.
 * Stages with none of `names` are reported if `senders` is set and a stage with some reads from them. If `first` is set, the
 * first one of a job is, with rank -1.
 */
public static String loads(Object context, Object execution, String names, long after, int limit, boolean senders,
        boolean first) {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    org.apache.spark.sql.execution.streaming.runtime.StreamExecution query =
        (org.apache.spark.sql.execution.streaming.runtime.StreamExecution) execution;
    if (query.lastProgress() == null) return "";
    // Only progress proves the end of a batch: a user's function may run several jobs in one.
    long over = query.lastProgress().batchId();
    if (after >= over) return "";
    long oldest = -1;
    org.apache.spark.status.AppStatusStore store = spark.statusStore();
    int[] jobs = spark.statusTracker().getJobIdsForGroup(query.runId().toString());
    java.util.Arrays.sort(jobs);
    StringBuilder out = new StringBuilder();
    for (int at = jobs.length - 1; at >= 0; at--) {
        try {
            org.apache.spark.status.api.v1.JobData job = store.job(jobs[at]);
            long batch = batchOf(job);
            if (batch > over || !job.completionTime().isDefined()) continue;
            if (oldest < 0) {
                // Not always the progress's last batch: an idle query reports progress, too.
                if (batch <= after) return "";
                oldest = Math.max(after + 1, batch - limit + 1);
            }
            if (batch < oldest - 1) break;
            if (job.status() != org.apache.spark.JobExecutionStatus.SUCCEEDED) continue;
            out.append("J\t").append(batch).append('\t')
                .append(((java.util.Date) job.completionTime().get()).getTime()).append('\n');
            java.util.List each = names.length() == 0 ? new java.util.ArrayList() : java.util.Arrays.asList(names.split(","));
            if (batch >= oldest) stages(store, job, each, senders, first, out);
        } catch (java.util.NoSuchElementException gone) { break; }
    }
    return out.toString();
}

/**
 * Completed stages of the jobs of batches after `after`, by tabs: "batch begunMilliseconds endedMilliseconds tasks
 * runMilliseconds longestMilliseconds cpuMilliseconds waitedMilliseconds shuffled python". longest: of a task; waited: for
 * shuffle blocks; shuffled: 1 if it reads a shuffle; python: as above. Jobs of no query, as batch -1, have the two times only.
 */
public static String work(Object context, Object execution, long after) {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    org.apache.spark.status.AppStatusStore store = spark.statusStore();
    String run = ((org.apache.spark.sql.execution.streaming.runtime.StreamExecution) execution).runId().toString();
    int newest = spark.dagScheduler().numTotalJobs() - 1;
    StringBuilder out = new StringBuilder();
    for (int at = newest; at >= 0 && at > newest - 100; at--) {
        try {
            org.apache.spark.status.api.v1.JobData job = store.job(at);
            long batch = batchOf(job);
            if (batch == Long.MAX_VALUE && job.submissionTime().isDefined()) {
                long ended = job.completionTime().isDefined()
                    ? ((java.util.Date) job.completionTime().get()).getTime() : System.currentTimeMillis();
                out.append("-1\t").append(((java.util.Date) job.submissionTime().get()).getTime()).append('\t').append(ended)
                    .append('\n');
            }
            if (batch == Long.MAX_VALUE || !job.jobGroup().isDefined() || !run.equals(job.jobGroup().get())) continue;
            if (batch <= after) break;
            for (int i = 0; i < job.stageIds().size(); i++) {
                int number = ((Integer) job.stageIds().apply(i)).intValue();
                org.apache.spark.status.api.v1.StageData stage = store.lastStageAttempt(number);
                if (!stage.submissionTime().isDefined() || !stage.completionTime().isDefined()) continue;
                scala.collection.immutable.Seq longest = store.taskList(number, stage.attemptId(), 0, 1,
                    org.apache.spark.status.api.v1.TaskSorting.DECREASING_RUNTIME, new java.util.ArrayList());
                if (longest.isEmpty()) continue;
                scala.Option spent = ((org.apache.spark.status.api.v1.TaskData) longest.apply(0)).taskMetrics();
                if (!spent.isDefined()) continue;
                out.append(batch).append('\t').append(((java.util.Date) stage.submissionTime().get()).getTime())
                    .append('\t').append(((java.util.Date) stage.completionTime().get()).getTime()).append('\t')
                    .append(stage.numTasks()).append('\t').append(stage.executorRunTime()).append('\t')
                    .append(((org.apache.spark.status.api.v1.TaskMetrics) spent.get()).executorRunTime()).append('\t')
                    .append(stage.executorCpuTime() / 1000000L).append('\t').append(stage.shuffleFetchWaitTime())
                    .append('\t').append(stage.shuffleReadBytes() > 0 ? 1 : 0).append('\t')
                    .append(python(store.operationGraphForStage(number).rootCluster()) ? 1 : 0).append('\n');
            }
        } catch (java.util.NoSuchElementException gone) { continue; }
    }
    return out.toString();
}

private static void stages(org.apache.spark.status.AppStatusStore store, org.apache.spark.status.api.v1.JobData job,
        java.util.List names, boolean senders, boolean first, StringBuilder out) {
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
        String before = (String) ranks.get(pair[1]);
        ranks.put(pair[1], before == null ? "" + rank : before + "," + rank);
    }
    java.util.TreeSet without = new java.util.TreeSet(graphs.keySet());
    without.removeAll(ranks.keySet());
    // Of a query with state, a job without it is a user's own.
    if (first && !without.isEmpty() && (names.isEmpty() || !ranks.isEmpty())) ranks.put(without.first(), "-1");
    java.util.TreeSet reported = new java.util.TreeSet(ranks.keySet());
    for (java.util.Iterator each = ranks.keySet().iterator(); senders && each.hasNext();)
        reported.addAll(parents((org.apache.spark.ui.scope.RDDOperationGraph) graphs.get(each.next()), stageOf));
    for (java.util.Iterator each = reported.iterator(); each.hasNext();) {
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

/** Collect the stage's plan nodes called one of `names`, by node number: name and stage. */
private static void collect(Object cluster, Integer stage, java.util.List names, java.util.TreeMap holders) {
    org.apache.spark.ui.scope.RDDOperationCluster scope = (org.apache.spark.ui.scope.RDDOperationCluster) cluster;
    if (scope.id().startsWith("spark_plan_") && names.contains(scope.name()))
        holders.put(Integer.valueOf(scope.id().substring(11)), new Object[] {scope.name(), stage});
    scala.collection.Seq children = scope.childClusters();
    for (int i = 0; i < children.size(); i++) collect(children.apply(i), stage, names, holders);
}

/** Return true if tasks hand records to Python, by the nodes of the plan, or by RDDs where a function works on those. */
private static boolean python(Object cluster) {
    org.apache.spark.ui.scope.RDDOperationCluster scope = (org.apache.spark.ui.scope.RDDOperationCluster) cluster;
    boolean runs = scope.name().matches(".*(Python|PySpark|Pandas|Arrow).*");
    for (int i = 0; i < scope.childNodes().size() && !runs; i++)
        runs = ((org.apache.spark.ui.scope.RDDOperationNode) scope.childNodes().apply(i)).name().equals("PythonRDD");
    for (int i = 0; i < scope.childClusters().size() && !runs; i++) runs = python(scope.childClusters().apply(i));
    return runs;
}

private static java.util.TreeSet parents(org.apache.spark.ui.scope.RDDOperationGraph graph, java.util.HashMap stageOf) {
    java.util.TreeSet stages = new java.util.TreeSet();
    scala.collection.Seq edges = graph.incomingEdges();
    for (int i = 0; i < edges.size(); i++) {
        Object stage = stageOf.get(Integer.valueOf(((org.apache.spark.ui.scope.RDDOperationEdge) edges.apply(i)).fromId()));
        if (stage != null) stages.add(stage);
    }
    return stages;
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
