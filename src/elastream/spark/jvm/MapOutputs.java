// Who sent how many bytes to which reduce partition, out of the driver's registry of shuffle outputs. Compiled by
// driver_side.py, in the Java that Janino knows. Reads only, and keeps nothing.

/**
 * Bytes of the blocks of shuffles whose map partition 0 one of the tasks `firsts` wrote: "first executor bytes,bytes,..." a
 * line per map task, in the order of map partitions, `first` being that task; a number for each of `partitions`.
 */
public static String outputs(Object context, String firsts, int partitions) {
    // Not by way of SparkEnv: one of its methods needs a library that Spark's Python package does not bring.
    org.apache.spark.MapOutputTrackerMaster tracker = ((org.apache.spark.scheduler.TaskSchedulerImpl)
        ((org.apache.spark.SparkContext) context).taskScheduler()).mapOutputTracker();
    java.util.List wanted = java.util.Arrays.asList(firsts.split(","));
    StringBuilder out = new StringBuilder();
    for (scala.collection.Iterator each = tracker.shuffleStatuses().valuesIterator(); each.hasNext();) {
        org.apache.spark.scheduler.MapStatus[] all = ((org.apache.spark.ShuffleStatus) each.next()).mapStatuses();
        if (all.length == 0 || all[0] == null || !wanted.contains("" + all[0].mapId())) continue;
        String first = "" + all[0].mapId();
        for (int i = 0; i < all.length; i++) {
            // An output that is gone with its executor leaves a gap: the rest of such a shuffle is not reported.
            if (all[i] == null) break;
            out.append(first).append('\t').append(all[i].location().executorId()).append('\t');
            for (int j = 0; j < partitions; j++) out.append(j == 0 ? "" : ",").append(all[i].getSizeForBlock(j));
            out.append('\n');
        }
    }
    return out.toString();
}
