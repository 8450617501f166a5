package elastream.copies;

// Warm standby: executors keep replicas of state partitions whose tasks run elsewhere, and hand one over to a task that
// needs it. The classes of this folder make one jar (jars.py); Spark loads this one by the setting spark.plugins.
// They are written for Janino, Spark's compiler: no generics, no lambdas.

/** Entry point: the registry in the driver, a follower in each executor. */
public class CopiesPlugin implements org.apache.spark.api.plugin.SparkPlugin {
    public org.apache.spark.api.plugin.DriverPlugin driverPlugin() {
        return new StandbyRegistry();
    }

    public org.apache.spark.api.plugin.ExecutorPlugin executorPlugin() {
        return new Follower();
    }
}
