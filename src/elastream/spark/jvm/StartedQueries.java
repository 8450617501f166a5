// Methods of a subclass of SparkListener, in the JVM of the driver. Elastream compiles them when Autopilot starts a pipeline.
// Written for Janino, Spark's compiler: no generics, no lambdas.

private final java.util.List started = java.util.Collections.synchronizedList(new java.util.ArrayList());
private java.util.Map running;

/** Keep each query that the application starts from now on. running: its queries of all sessions, by id. */
public void follow(Object context, Object running) {
    this.running = (java.util.Map) running;
    ((org.apache.spark.SparkContext) context).addSparkListener(this);
}

/** Started queries, running or ended; for a query that ended unseen, its id. */
public Object[] queries() {
    return started.toArray();
}

public void onOtherEvent(org.apache.spark.scheduler.SparkListenerEvent event) {
    if (event instanceof org.apache.spark.sql.streaming.StreamingQueryListener.QueryStartedEvent) {
        Object id = ((org.apache.spark.sql.streaming.StreamingQueryListener.QueryStartedEvent) event).id();
        Object query = running.get(id);
        started.add(query == null ? id.toString() : query);
    }
}
