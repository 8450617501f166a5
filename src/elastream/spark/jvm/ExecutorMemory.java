// Memory of executors, from their heartbeats (spark.executor.heartbeatInterval). A SparkListener, compiled by
// executor_memory.py in Janino's Java. A heartbeat carries figures only if a stage ran since the one before.

private static final String[] FIGURES =
    {"JVMHeapMemory", "JVMOffHeapMemory", "DirectPoolMemory", "MappedPoolMemory",
     "MajorGCCount", "ConcurrentGCCount", "TotalGCTime", "ProcessTreePythonRSSMemory"};

private org.apache.spark.SparkContext context;
private final java.util.concurrent.ConcurrentHashMap newest = new java.util.concurrent.ConcurrentHashMap();

/** Fail now if this Spark lacks the figures. */
public void begin(Object context) {
    this.context = (org.apache.spark.SparkContext) context;
    org.apache.spark.executor.ExecutorMetrics none = new org.apache.spark.executor.ExecutorMetrics();
    for (int i = 0; i < FIGURES.length; i++) none.getMetricValue(FIGURES[i]);
}

/** Listen in a queue of its own, behind no other listener. */
public void listen() {
    context.listenerBus().addToQueue(this, "elastream-memory");
}

public void onExecutorMetricsUpdate(org.apache.spark.scheduler.SparkListenerExecutorMetricsUpdate event) {
    scala.collection.Iterator all = event.executorUpdates().valuesIterator();
    if (!all.hasNext()) return;
    org.apache.spark.executor.ExecutorMetrics each = (org.apache.spark.executor.ExecutorMetrics) all.next();
    StringBuilder out = new StringBuilder().append(event.execId()).append('\t').append(System.currentTimeMillis());
    for (int i = 0; i < FIGURES.length; i++) out.append('\t').append(each.getMetricValue(FIGURES[i]));
    newest.put(event.execId(), out.append('\n').toString());
}

public void onExecutorRemoved(org.apache.spark.scheduler.SparkListenerExecutorRemoved event) {
    newest.remove(event.executorId());
}

/** The newest figures of each executor: lines "id epochMilliseconds" and FIGURES, by tabs. */
public String memory() {
    StringBuilder out = new StringBuilder();
    java.util.Iterator lines = newest.values().iterator();
    while (lines.hasNext()) out.append((String) lines.next());
    return out.toString();
}

public void end() {
    context.listenerBus().removeListener(this);
}
