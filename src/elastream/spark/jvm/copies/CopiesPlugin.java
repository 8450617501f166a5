package elastream.copies;

// Warm standby: executors keep copies of state partitions whose tasks run elsewhere, and hand one over to the task that comes
// to need it. The classes of this folder make one jar (copies_jar.py); Spark loads this one by the setting spark.plugins.
// They are written for the compiler that Spark ships (Janino): no generics, no lambdas.

/** What Spark starts in the driver (the desk) and in each executor (the follower). */
public class CopiesPlugin implements org.apache.spark.api.plugin.SparkPlugin {
    public org.apache.spark.api.plugin.DriverPlugin driverPlugin() {
        return new Desk();
    }

    public org.apache.spark.api.plugin.ExecutorPlugin executorPlugin() {
        return new Follower();
    }
}
