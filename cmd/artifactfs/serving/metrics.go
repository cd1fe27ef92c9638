package serving

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"go.uber.org/zap"
)

const (
	// metricsTime is the time for which a successor tries to listen at the address. A process that has just died may still hold
	// the address for a moment.
	metricsTime = 5 * time.Second
	metricsPoll = 20 * time.Millisecond
)

// serveMetrics serves metrics in the background until the function end is called, which also waits until the server has ended. If
// the flag --metrics is not set, serveMetrics does nothing. A successor starts even if the address is still in use, and retries in
// the background until its dead predecessor has released the address.
func serveMetrics(a *cli.App, h cli.Host, log *zap.Logger, successor bool) (end func(), _ error) {
	if a.Metrics.Text == "" {
		return func() {}, nil
	}
	address := a.Metrics.Address
	l, err := address.Listen()
	if err != nil && !successor {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() {
		// Only a successor reaches this point with an error. Its predecessor may still hold the address.
		for give := time.Now().Add(metricsTime); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(give) && ctx.Err() == nil; {
			time.Sleep(metricsPoll)
			l, err = address.Listen()
		}
		if err == nil {
			log.Info("serving metrics", zap.Stringer("address", address))
			err = address.Serve(ctx, l, h.WriteMetrics)
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
