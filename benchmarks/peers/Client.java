import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.ArrayDeque;
import java.util.Queue;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * Plays a service and its client: a call is answered after its latency, or at once if that is 0; with an address it is
 * a request of Java's own HTTP client. At most so many run at a time, as with a pool of connections; the others wait for
 * one of them to end. A request that fails ends the program.
 */
final class Client implements AutoCloseable {
    static final int UNBOUNDED = Integer.MAX_VALUE;

    private final int most;
    private final ScheduledExecutorService timer;
    private final HttpClient http;
    private final HttpRequest request; // null: no address
    // Owns the lock. Nothing waits here unless `running` equals `most`.
    private final Queue<Runnable> waiting = new ArrayDeque<>();
    private int running;

    Client(int most, String url) {
        this.most = most;
        http = url.isEmpty() ? null : HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        request = url.isEmpty() ? null : HttpRequest.newBuilder(URI.create(url)).build();
        timer = Executors.newSingleThreadScheduledExecutor(task -> {
            Thread thread = new Thread(task, "service");
            thread.setDaemon(true);
            return thread;
        });
    }

    void call(double latency, Runnable answer) {
        if (latency == 0) {
            answer.run();
            return;
        }
        synchronized (waiting) {
            if (running == most) {
                waiting.add(() -> start(latency, answer));
                return;
            }
            running++;
        }
        start(latency, answer);
    }

    @Override
    public void close() {
        timer.shutdownNow();
    }

    private void start(double latency, Runnable answer) {
        if (request == null) {
            timer.schedule(() -> end(answer), (long) (latency * 1e9), TimeUnit.NANOSECONDS);
            return;
        }
        http.sendAsync(request, BodyHandlers.ofByteArray()).whenComplete((response, failure) -> {
            if (failure != null || response.statusCode() != 200) {
                System.err.println("a request failed: " + (failure != null ? failure : response));
                Runtime.getRuntime().halt(1);
            }
            end(answer);
        });
    }

    private void end(Runnable answer) {
        Runnable next;
        synchronized (waiting) {
            next = waiting.poll();
            if (next == null) {
                running--;
            }
        }
        if (next != null) {
            next.run();
        }
        answer.run();
    }
}
