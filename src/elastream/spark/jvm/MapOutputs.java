// Bytes by sender and reduce partition, from the driver's registry of shuffle outputs. Compiled by driver_side.py, in
// Janino's Java. Reads only, keeps nothing.

/**
 * Block sizes of shuffles whose map partition 0 was written by one of the tasks `firsts`. A line per map task, in order of
 * map partitions: "first executor bytes,bytes,...", a number for each of `partitions`.
 */
public static String outputs(Object context, String firsts, int partitions) {
    // Not through SparkEnv: one of its methods needs a library that PySpark lacks.
    org.apache.spark.MapOutputTrackerMaster tracker = ((org.apache.spark.scheduler.TaskSchedulerImpl)
        ((org.apache.spark.SparkContext) context).taskScheduler()).mapOutputTracker();
    java.util.List requested = java.util.Arrays.asList(firsts.split(","));
    StringBuilder out = new StringBuilder();
    for (scala.collection.Iterator each = tracker.shuffleStatuses().valuesIterator(); each.hasNext();) {
        org.apache.spark.scheduler.MapStatus[] all = ((org.apache.spark.ShuffleStatus) each.next()).mapStatuses();
        if (all.length == 0 || all[0] == null || !requested.contains("" + all[0].mapId())) continue;
        String first = "" + all[0].mapId();
        for (int i = 0; i < all.length; i++) {
            // An output lost with its executor leaves a gap: the rest of the shuffle is not reported.
            if (all[i] == null) break;
            out.append(first).append('\t').append(all[i].location().executorId()).append('\t');
            for (int j = 0; j < partitions; j++) out.append(j == 0 ? "" : ",").append(all[i].getSizeForBlock(j));
            out.append('\n');
        }
    }
    return out.toString();
}
