import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.spark.api.java.function.MapPartitionsFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.functions;

/**
 * An async client in Java's mapPartitions, without Python: a sliding window of futures, whose head the task waits for.
 * The window is a hundred times as long as calls may be in flight, or longer, and the client bounds the calls. Counted
 * is the time from the first call to the end of the action. Each line of the input is a job of so many rows.
 */
public final class SparkAsync {
    /** The results in the order of the rows, each the time at which its call was made, in seconds. */
    private static final class Window implements Iterator<Double> {
        private final Iterator<Double> rows;
        private final int length;
        private final Client client;
        private final long timeout;
        private final Queue<CompletableFuture<Double>> calls = new ArrayDeque<>();

        Window(Iterator<Double> rows, int length, Client client, long timeout) {
            this.rows = rows;
            this.length = length;
            this.client = client;
            this.timeout = timeout;
        }

        @Override
        public boolean hasNext() {
            return rows.hasNext() || !calls.isEmpty();
        }

        @Override
        public Double next() {
            while (calls.size() < length && rows.hasNext()) {
                calls.add(call(rows.next()));
            }
            return calls.remove().join();
        }

        private CompletableFuture<Double> call(double latency) {
            CompletableFuture<Double> result = new CompletableFuture<>();
            double started = System.nanoTime() / 1e9;
            client.call(latency, () -> result.complete(started));
            return result.isDone() ? result : result.orTimeout(timeout, TimeUnit.MILLISECONDS);
        }
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode workload = new ObjectMapper().readTree(new File(arguments[0]));
        List<Double> latencies = new ArrayList<>();
        workload.get("latencies").forEach(latency -> latencies.add(latency.asDouble()));
        String url = workload.get("url").asText();
        long timeout = (long) (workload.get("timeout").asDouble() * 1000);
        int calls = workload.get("capacity").asInt();
        int length = workload.get("room").asInt() * calls;
        String master = workload.get("master").asText();
        MapPartitionsFunction<Double, Double> window =
                rows -> new Window(rows, length, new Client(calls, url), timeout);

        SparkSession session = SparkSession.builder().master(master).config("spark.ui.enabled", "false").getOrCreate();
        session.sparkContext().setLogLevel("ERROR");
        String note = "ordered only; a window of " + workload.get("room").asInt()
                + " times the calls in flight; the client limits these";
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            List<Double> given = latencies.subList(0, Integer.parseInt(line));
            Dataset<Double> table = session.createDataset(given, Encoders.DOUBLE()).coalesce(1).cache();
            table.count();
            Row found = table.mapPartitions(window, Encoders.DOUBLE())
                    .agg(functions.min("value"), functions.count("value"))
                    .first();
            double last = System.nanoTime() / 1e9;
            table.unpersist();
            String told = "{\"seconds\": %.9f, \"rows\": %d, \"version\": \"%s\", \"note\": \"%s\"}%n";
            System.out.printf(
                    Locale.ROOT, told, last - found.getDouble(0), found.getLong(1), session.version(), note);
        }
        session.stop();
    }
}
