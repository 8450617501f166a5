// Reasons of a Standalone master for requested executors that do not start. It reports the size of its workers, not their
// free room.

/** "waits sentence" by a tab if executors cannot come; "says sentence" if they can, once there is room. */
public static String reason(Object context, int registered) throws Exception {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    Object answer = state(spark);
    Object[] workers = (Object[]) answer.getClass().getMethod("workers", new Class[0]).invoke(answer, new Object[0]);
    int memory = spark.executorMemory();
    int cores = spark.conf().getInt("spark.executor.cores", 1);
    int fit = 0;
    for (int i = 0; i < workers.length; i++) {
        org.apache.spark.deploy.master.WorkerInfo each = (org.apache.spark.deploy.master.WorkerInfo) workers[i];
        if (each.cores() >= cores && each.memory() >= memory) fit++;
    }
    String needs = cores + (cores == 1 ? " core and " : " cores and ") + memory + " MiB";
    if (workers.length == 0) return "waits\tthe master has no worker\n";
    if (fit == 0) return "waits\tnone of the master's " + workers.length + " workers has " + needs + "\n";
    return "says\tit needs " + needs + " free on one of the master's workers, of which " + fit + " of " + workers.length
        + (fit == 1 ? " is" : " are") + " large enough\n";
}

/** "number name" by a tab: executors of `slots` cores that fit the application's cores, by the master's default. */
public static String limit(Object context, int slots) throws Exception {
    org.apache.spark.SparkContext spark = (org.apache.spark.SparkContext) context;
    if (slots == 0 || spark.conf().contains("spark.cores.max")) return "";
    Object answer = state(spark);
    Object[] all = (Object[]) answer.getClass().getMethod("activeApps", new Class[0]).invoke(answer, new Object[0]);
    for (int i = 0; i < all.length; i++) {
        org.apache.spark.deploy.master.ApplicationInfo each = (org.apache.spark.deploy.master.ApplicationInfo) all[i];
        // Without its current cores in the request, the remaining ones are all that it may have.
        if (each.id().equals(spark.applicationId()) && each.coresLeft() < Integer.MAX_VALUE)
            return each.coresLeft() / slots + "\tspark.deploy.defaultCores=" + each.coresLeft() + " of the master\n";
    }
    return "";
}

private static Object state(org.apache.spark.SparkContext spark) throws Exception {
    String master = spark.master().substring("spark://".length()).split(",")[0];
    int colon = master.lastIndexOf(':');
    org.apache.spark.rpc.RpcEndpointRef ref = ((org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend) spark.schedulerBackend())
        .rpcEnv().setupEndpointRef(
        new org.apache.spark.rpc.RpcAddress(master.substring(0, colon), Integer.parseInt(master.substring(colon + 1))),
        "Master");
    Object question = Class.forName("org.apache.spark.deploy.DeployMessages$RequestMasterState$", true,
        spark.getClass().getClassLoader()).getField("MODULE$").get(null);
    return ref.askSync(question, scala.reflect.ClassTag$.MODULE$.apply(Object.class));
}
