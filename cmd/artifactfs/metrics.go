package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/metrics"
)

const (
	// metricsTime is how long a process that just died may still have the address that its successor wants.
	metricsTime = 5 * time.Second
	metricsPoll = 20 * time.Millisecond
)

// metricsAddress is a flag that says where metrics are served.
type metricsAddress struct {
	text    string
	address metrics.Address
}

func (m *metricsAddress) String() string { return m.text }
func (m *metricsAddress) Type() string   { return "unix:PATH|HOST:PORT" }

func (m *metricsAddress) Set(text string) (err error) {
	m.address, err = metrics.ParseAddress(text)
	m.text = m.address.String() // a worker is told, who may be in another directory
	return err
}

// serveMetrics answers in the background until end is called; end waits for that. Without the flag it does nothing. A
// successor goes on without if it has to, and does not wait until its dead predecessor has given up the address.
func (a *app) serveMetrics(h host, log *zap.Logger, successor bool) (end func(), _ error) {
	if a.metrics.text == "" {
		return func() {}, nil
	}
	address := a.metrics.address
	l, err := address.Listen()
	if err != nil && !successor {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() {
		for give := time.Now().Add(metricsTime); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(give) && ctx.Err() == nil; {
			time.Sleep(metricsPoll)
			l, err = address.Listen()
		}
		if err == nil {
			log.Info("metrics are served", zap.Stringer("address", address))
			err = address.Serve(ctx, l, h.WriteMetrics)
		}
		if err != nil && ctx.Err() == nil {
			log.Error("metrics are not served", zap.Error(err))
		}
	})
	return func() {
		cancel()
		served.Wait()
	}, nil
}
