package elastream.copies;

// Which copies leave for a nearer one: for each line "ranks memory rank missing" of numbers (lists by commas), who
// leaves by Follower.leaving, as 0 and 1, or "none" where that does not suffice.
public final class RoomCheck {
    /** `main CASE...` */
    public static void main(String[] with) {
        for (int i = 0; i < with.length; i++) {
            String[] parts = with[i].split(" ");
            String[] ranks = parts[0].split(","), memory = parts[1].split(",");
            int[] of = new int[ranks.length];
            long[] taken = new long[ranks.length];
            for (int k = 0; k < of.length; k++) {
                of[k] = Integer.parseInt(ranks[k]);
                taken[k] = Long.parseLong(memory[k]);
            }
            boolean[] leaves = Follower.leaving(of, taken, Integer.parseInt(parts[2]), Long.parseLong(parts[3]));
            StringBuilder out = new StringBuilder(leaves == null ? "none" : "");
            for (int k = 0; leaves != null && k < leaves.length; k++) out.append(leaves[k] ? '1' : '0');
            System.out.println(out);
        }
    }
}
