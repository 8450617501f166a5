// YARN's own ResourceManager and two NodeManagers in this process. Arguments: the folder that takes Hadoop's configuration;
// memory (MiB) and cores of each node. Prints READY once it is written; runs until it is ended.

import java.io.FileWriter;
import java.io.Writer;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

public class MiniYarn {
  public static void main(String[] given) throws Exception {
    YarnConfiguration settings = new YarnConfiguration();
    settings.setInt("yarn.scheduler.minimum-allocation-mb", 64);
    settings.setInt("yarn.nodemanager.resource.memory-mb", Integer.parseInt(given[1]));
    settings.setInt("yarn.nodemanager.resource.cpu-vcores", Integer.parseInt(given[2]));
    settings.set("yarn.nodemanager.vmem-check-enabled", "false");
    settings.set("yarn.nodemanager.pmem-check-enabled", "false");
    settings.setBoolean("yarn.minicluster.fixed.ports", false);
    settings.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99.9");
    settings.set("yarn.resourcemanager.nodemanagers.heartbeat-interval-ms", "200");
    settings.set("yarn.scheduler.capacity.root.queues", "default");
    settings.set("yarn.scheduler.capacity.root.default.capacity", "100");
    settings.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0");
    settings.set("yarn.scheduler.capacity.root.default.maximum-am-resource-percent", "1.0");
    settings.set("yarn.scheduler.capacity.resource-calculator",
        "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator");
    MiniYARNCluster cluster = new MiniYARNCluster("tests", 1, 2, 1, 1);
    cluster.init(settings);
    cluster.start();
    cluster.waitForNodeManagersToConnect(60000);
    try (Writer file = new FileWriter(given[0] + "/yarn-site.xml")) { cluster.getConfig().writeXml(file); }
    try (Writer file = new FileWriter(given[0] + "/core-site.xml")) {
      file.write("<configuration><property><name>fs.defaultFS</name><value>file:///</value></property></configuration>");
    }
    System.out.println("READY");
    System.out.flush();
    Thread.sleep(Long.MAX_VALUE);
  }
}
