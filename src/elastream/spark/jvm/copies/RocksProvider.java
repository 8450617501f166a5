package elastream.copies;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.execution.streaming.state.RocksDB;
import org.apache.spark.sql.execution.streaming.state.RocksDBConf;
import org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider;

/** Spark's provider of state in RocksDB, over a database that can replay changes. */
final class RocksProvider extends RocksDBStateStoreProvider {
    private final Operator operator;
    private final int partition;

    RocksProvider(Operator operator, int partition) {
        this.operator = operator;
        this.partition = partition;
    }

    public RocksDB createRocksDB(
        String root, RocksDBConf conf, java.io.File local, Configuration hadoop, String called, boolean families,
        boolean ids, int number, scala.Option forwarder, scala.Option unique) {
        ReplicaRocksDB made = new ReplicaRocksDB(root, conf, local, hadoop, called, families, ids, number, forwarder, unique);
        made.of(operator, partition);
        return made;
    }
}
