import java.util.ArrayDeque;
import java.util.Queue;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * Plays a service and its client: a call is answered after its latency, or at once if that is 0. At most so many run at
 * a time, as with a pool of connections; the others wait for one of them to end.
 */
final class Client implements AutoCloseable {
    static final int UNBOUNDED = Integer.MAX_VALUE;

    private final int most;
    private final ScheduledExecutorService timer;
    // Owns the lock. Nothing waits here unless `running` equals `most`.
    private final Queue<Runnable> waiting = new ArrayDeque<>();
    private int running;

    Client(int most) {
        this.most = most;
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
        timer.schedule(() -> end(answer), (long) (latency * 1e9), TimeUnit.NANOSECONDS);
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
