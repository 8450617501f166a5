package elastream.copies;

import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** How many batches of one run are committed, by the log in its checkpoint. Used by the follower's thread only. */
final class Commits {
    private static final long LISTED = 5000L;
    private final Path folder;
    private final FileSystem files;
    private long known = -1L, listed = 0L;

    Commits(Operator operator) throws Exception {
        folder = new Path(new Path(operator.root).getParent(), "commits");
        files = folder.getFileSystem(operator.hadoop());
    }

    /**
     * Committed batches; -1 before the first. Number n has its file once it is committed, as a whole: files come into being
     * under other names. Old ones are deleted in time, so all are listed now and then.
     */
    long count() throws Exception {
        while (known >= 0L && files.exists(new Path(folder, Long.toString(known)))) known++;
        long now = System.currentTimeMillis();
        if (known < 0L || now - listed > LISTED) {
            listed = now;
            if (!files.exists(folder)) return known;
            FileStatus[] all = files.listStatus(folder);
            for (int i = 0; i < all.length; i++) {
                String name = all[i].getPath().getName();
                if (!name.isEmpty() && name.length() < 19 && digits(name))
                    known = Math.max(known, Long.parseLong(name) + 1L);
            }
        }
        return known;
    }

    private static boolean digits(String name) {
        for (int i = 0; i < name.length(); i++) if (!Character.isDigit(name.charAt(i))) return false;
        return true;
    }
}
