// Reasons of YARN for requested containers that an application did not get. Calls go to the resource manager.

/** Lines "starting N", and "waits sentence" if requests wait, by tabs. */
public static String reason(Object context, int registered) throws Exception {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    org.apache.hadoop.yarn.client.api.YarnClient client = client(spark);
    try {
        org.apache.hadoop.yarn.api.records.ApplicationReport report = client.getApplicationReport(
            org.apache.hadoop.yarn.api.records.ApplicationId.fromString(spark.applicationId()));
        // One container is the application master's; the others are executors.
        int starting = report.getApplicationResourceUsageReport().getNumUsedContainers() - 1 - registered;
        StringBuilder out = new StringBuilder("starting\t" + Math.max(0, starting) + "\n");
        org.apache.hadoop.yarn.api.records.QueueInfo queue = client.getQueueInfo(report.getQueue());
        if (queue != null && queue.getQueueState() == org.apache.hadoop.yarn.api.records.QueueState.STOPPED)
            return out.append("waits\tqueue '" + report.getQueue() + "' is stopped\n").toString();
        long needed = needed(spark);
        int cores = spark.conf().getInt("spark.executor.cores", 1);
        java.util.List nodes = client.getNodeReports(new org.apache.hadoop.yarn.api.records.NodeState[] {
            org.apache.hadoop.yarn.api.records.NodeState.RUNNING});
        int large = 0, free = 0;
        for (int i = 0; i < nodes.size(); i++) {
            org.apache.hadoop.yarn.api.records.NodeReport node = (org.apache.hadoop.yarn.api.records.NodeReport) nodes.get(i);
            long memory = node.getCapability().getMemorySize();
            int has = node.getCapability().getVirtualCores();
            if (memory >= needed && has >= cores) large++;
            if (memory - node.getUsed().getMemorySize() >= needed && has - node.getUsed().getVirtualCores() >= cores) free++;
        }
        String container = "a container of " + needed + " MiB and " + cores + (cores == 1 ? " core" : " cores");
        if (large == 0)
            out.append("waits\tno node of " + nodes.size() + " is large enough for " + container + "\n");
        else if (free == 0)
            out.append("waits\tno node of " + nodes.size() + " has room for " + container + "\n");
        else if (queue != null)
            out.append("says\tqueue '" + report.getQueue() + "' has not granted " + container + " yet; "
                + Math.round(100 * queue.getCurrentCapacity()) + " % of what is its own is used\n");
        return out.toString();
    } finally {
        client.stop();
    }
}

/**
 * Executors on nodes that YARN decommissions: lines "executor +milliseconds reason", by tabs; the time counts from the first
 * report of a node. YARN announces preemptions to the application master alone.
 */
public static String notices(Object context) throws Exception {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    org.apache.hadoop.yarn.client.api.YarnClient client = client(spark);
    try {
        java.util.HashMap ends = new java.util.HashMap();
        java.util.List nodes = client.getNodeReports(new org.apache.hadoop.yarn.api.records.NodeState[] {
            org.apache.hadoop.yarn.api.records.NodeState.DECOMMISSIONING});
        for (int i = 0; i < nodes.size(); i++) {
            org.apache.hadoop.yarn.api.records.NodeReport node = (org.apache.hadoop.yarn.api.records.NodeReport) nodes.get(i);
            Integer left = node.getDecommissioningTimeout();
            // The whole time-out, not the rest of it. Without one, YARN waits for the application to end, which never
            // happens.
            ends.put(node.getNodeId().getHost(), left == null ? "" : "+" + 1000L * (left < 0 ? 3600 : left.intValue()));
        }
        StringBuilder out = new StringBuilder();
        scala.collection.immutable.Seq all = spark.statusStore().executorList(true);
        for (int i = 0; i < all.size() && !ends.isEmpty(); i++) {
            org.apache.spark.status.api.v1.ExecutorSummary each = (org.apache.spark.status.api.v1.ExecutorSummary) all.apply(i);
            String host = each.hostPort().substring(0, Math.max(0, each.hostPort().lastIndexOf(':')));
            if (ends.containsKey(host)) out.append(each.id()).append('\t').append(ends.get(host))
                .append("\tits node is being decommissioned\n");
        }
        return out.toString();
    } finally {
        client.stop();
    }
}

/** YARN has no mark that keeps a container in its place. */
public static String protect(Object context, String ids) {
    return "";
}

/** "number name" by a tab if the application's queue may not take all of the cluster: its most executors. */
public static String limit(Object context, int slots) throws Exception {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    org.apache.hadoop.yarn.client.api.YarnClient client = client(spark);
    try {
        org.apache.hadoop.yarn.api.records.ApplicationReport report = client.getApplicationReport(
            org.apache.hadoop.yarn.api.records.ApplicationId.fromString(spark.applicationId()));
        org.apache.hadoop.yarn.api.records.QueueInfo queue = client.getQueueInfo(report.getQueue());
        if (queue == null || !(queue.getMaximumCapacity() > 0 && queue.getMaximumCapacity() < 1)) return "";
        java.util.List nodes = client.getNodeReports(new org.apache.hadoop.yarn.api.records.NodeState[] {
            org.apache.hadoop.yarn.api.records.NodeState.RUNNING});
        long memory = 0;
        for (int i = 0; i < nodes.size(); i++)
            memory += ((org.apache.hadoop.yarn.api.records.NodeReport) nodes.get(i)).getCapability().getMemorySize();
        long manager = spark.conf().getSizeAsMb("spark.yarn.am.memory", "512m");
        long most = (long) ((memory * (double) queue.getMaximumCapacity() - manager) / needed(spark));
        return Math.max(0L, most) + "\tqueue '" + report.getQueue() + "', which may take "
            + Math.round(100 * queue.getMaximumCapacity()) + " % of the cluster\n";
    } finally {
        client.stop();
    }
}

/** MiB of an executor's container. */
private static long needed(org.apache.spark.SparkContext spark) {
    return spark.executorMemory() + spark.conf().getSizeAsMb("spark.executor.memoryOverhead",
        Math.max(384, spark.executorMemory() / 10) + "m");
}

/** Kill an earlier application unless it has ended; return "containers in state STATE", or nothing. */
public static String releaseLeftovers(Object context, String application) throws Exception {
    org.apache.hadoop.yarn.client.api.YarnClient client = client((org.apache.spark.SparkContext) context);
    try {
        org.apache.hadoop.yarn.api.records.ApplicationId id =
            org.apache.hadoop.yarn.api.records.ApplicationId.fromString(application);
        org.apache.hadoop.yarn.api.records.YarnApplicationState state = client.getApplicationReport(id).getYarnApplicationState();
        if (state == org.apache.hadoop.yarn.api.records.YarnApplicationState.FINISHED
            || state == org.apache.hadoop.yarn.api.records.YarnApplicationState.FAILED
            || state == org.apache.hadoop.yarn.api.records.YarnApplicationState.KILLED) return "";
        client.killApplication(id);
        return "containers in state " + state + "\n";
    } catch (org.apache.hadoop.yarn.exceptions.ApplicationNotFoundException forgotten) {
        return "";
    } finally {
        client.stop();
    }
}

private static org.apache.hadoop.yarn.client.api.YarnClient client(org.apache.spark.SparkContext spark) {
    org.apache.hadoop.yarn.client.api.YarnClient client = org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient();
    client.init(new org.apache.hadoop.yarn.conf.YarnConfiguration(spark.hadoopConfiguration()));
    client.start();
    return client;
}
