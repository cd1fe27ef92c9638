package serving

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/git/transport/tokenfile"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/proc"
	"go.uber.org/zap"
)

const (
	// metricsTime is the time for which a successor tries to listen at the address of the metrics. A predecessor that
	// has just died may still hold the address for a moment.
	metricsTime = 5 * time.Second
	metricsPoll = 20 * time.Millisecond
)

// serveMetrics serves the output of write as metrics in the background until the function end is called, which also
// waits until the server has ended. If the flag --metrics is not set, serveMetrics does nothing. A successor starts
// even if the address is still in use, and retries in the background until its dead predecessor has released the
// address.
func serveMetrics(a *cli.App, write func(ctx context.Context, out io.Writer) error, log *zap.Logger, successor bool) (
	end func(), _ error,
) {
	if a.Metrics.Text == "" {
		return func() {}, nil
	}
	address, handler := a.Metrics.Address, metrics.Handler{Write: write}
	if a.MetricsTokenFile != "" {
		file := tokenfile.New(a.MetricsTokenFile)
		handler.Token = func() (string, error) { return file.Token(nil) }
	}
	l, err := address.Listen()
	if err != nil && !successor {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() {
		// Only a successor reaches this point with an error. Its predecessor may still hold the address.
		for give := time.Now().Add(metricsTime); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(give) &&
			ctx.Err() == nil; {
			time.Sleep(metricsPoll)
			l, err = address.Listen()
		}
		if err == nil {
			log.Info("serving metrics", zap.Stringer("address", address))
			err = address.Serve(ctx, l, handler)
		}
		if err != nil && ctx.Err() == nil {
			log.Error("serve metrics", zap.Error(err))
		}
	})
	return func() {
		cancel()
		served.Wait()
	}, nil
}

// WriteMetrics writes the metrics of the two processes of the daemon, and then those of the Host.
func (w *worker) WriteMetrics(ctx context.Context, out io.Writer) error {
	text := metrics.NewWriter(out)
	// The function one writes a metric family that has a single sample.
	one := func(name string, kind metrics.Kind, help string, v float64, labels ...metrics.Label) {
		text.Family(name, kind, help)
		text.Sample(v, labels...)
	}
	one("artifactfs_build_info", metrics.Gauge, "Version of the worker; always 1.", 1,
		metrics.Label{Name: "version", Value: cli.Version})
	w.mu.Lock()
	failed := w.failed
	w.mu.Unlock()
	reverted := 0.0
	if failed != "" {
		reverted = 1
	}
	one("artifactfs_upgrade_reverted", metrics.Gauge, "1 if the last upgrade was reverted.", reverted)
	one("artifactfs_takeovers_total", metrics.Counter, "Workers that took over the mounts of their predecessor.",
		float64(w.start.Count))
	one("artifactfs_watchdog_kills_total", metrics.Counter, "Workers that were killed because they did not respond.",
		float64(w.start.Hung))
	if resident, ok := proc.Of(w.start.Supervisor).ResidentBytes(); ok {
		one("artifactfs_supervisor_resident_bytes", metrics.Gauge, "Resident memory of the supervisor.", float64(resident))
	}
	if err := text.Flush(); err != nil {
		return err
	}
	return w.Host.WriteMetrics(ctx, out)
}
