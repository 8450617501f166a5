package elastream.beside;

import org.apache.spark.SparkConf;
import org.apache.spark.api.python.Py4JServer;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerApplicationStart;

// `elastream autopilot spark-submit ...` names this class in spark.extraListeners. It exists in the driver only.
// It is written for Janino, Spark's compiler: no generics, no lambdas.

/** Starts a Python process with Autopilot beside the application in this JVM, and ends it with the application. */
public class AutopilotListener extends SparkListener {
    private static final long LONGEST_END_MS = 60000L;
    private final SparkConf conf;
    private Process python;
    private Py4JServer server;

    public AutopilotListener(SparkConf conf) {
        this.conf = conf;
    }

    /** The application continues without Autopilot if Python does not start. */
    public void onApplicationStart(SparkListenerApplicationStart started) {
        try {
            server = new Py4JServer(conf);
            server.start();
            ProcessBuilder builder = new ProcessBuilder(new String[] {
                conf.get("spark.elastream.python"), "-m", "elastream.cli.beside", conf.get("spark.elastream.autopilot")
            });
            builder.environment().put("PYSPARK_GATEWAY_PORT", Integer.toString(server.getListeningPort()));
            builder.environment().put("PYSPARK_GATEWAY_SECRET", server.secret());
            builder.redirectOutput(ProcessBuilder.Redirect.INHERIT);
            builder.redirectError(ProcessBuilder.Redirect.INHERIT);
            python = builder.start();
        } catch (Throwable error) {
            System.err.println("elastream: Autopilot does not run: " + error);
        }
    }

    /** The process ends once its standard input does. */
    public void onApplicationEnd(SparkListenerApplicationEnd ended) {
        try {
            if (python != null) {
                python.getOutputStream().close();
                python.waitFor(LONGEST_END_MS, java.util.concurrent.TimeUnit.MILLISECONDS);
                python.destroy();
            }
            if (server != null) {
                server.shutdown();
            }
        } catch (Throwable error) {
            System.err.println("elastream: Autopilot did not end in order: " + error);
        }
    }
}
