package elastream.copies;

// Which copies leave for a nearer one: for each line "ranks memory rank missing" of numbers (lists by commas), what
// Follower.staying answers.
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
            System.out.println(Follower.staying(of, taken, Integer.parseInt(parts[2]), Long.parseLong(parts[3])));
        }
    }
}
