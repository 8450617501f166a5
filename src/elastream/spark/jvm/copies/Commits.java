package elastream.copies;

import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Number of committed batches of one run, by its checkpoint's log. For the follower's thread only. */
final class Commits {
    private static final long LIST_MS = 5000L;
    private final Path folder;
    private final FileSystem files;
    private long committed = -1L, listedAt = 0L;

    Commits(Operator operator) throws Exception {
        folder = new Path(new Path(operator.root).getParent(), "commits");
        files = folder.getFileSystem(operator.hadoop());
    }

    /**
     * Committed batches; -1 before the first. File n exists, complete, once batch n is committed, because files are renamed
     * into place. Old ones get deleted, so all are listed now and then.
     */
    long count() throws Exception {
        while (committed >= 0L && files.exists(new Path(folder, Long.toString(committed)))) committed++;
        long now = System.currentTimeMillis();
        if (committed < 0L || now - listedAt > LIST_MS) {
            listedAt = now;
            if (!files.exists(folder)) return committed;
            FileStatus[] all = files.listStatus(folder);
            for (int i = 0; i < all.length; i++) {
                String name = all[i].getPath().getName();
                if (name.matches("[0-9]{1,18}")) committed = Math.max(committed, Long.parseLong(name) + 1L);
            }
        }
        return committed;
    }
}
