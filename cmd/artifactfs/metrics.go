package main

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	m.text = text
	return err
}

// serveMetrics answers in the background until end is called; end waits for that. Without the flag it does nothing.
func (a *app) serveMetrics(h host, log *zap.Logger) (end func(), err error) {
	if a.metrics.text == "" {
		return func() {}, nil
	}
	address := a.metrics.address
	l, err := address.Listen()
	for give := time.Now().Add(metricsTime); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(give); {
		time.Sleep(metricsPoll)
		l, err = address.Listen()
	}
	if err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	log.Info("metrics are served", zap.Stringer("address", address))
	return serveMetricsAt(h, log, address, l), nil
}

func serveMetricsAt(h host, log *zap.Logger, address metrics.Address, l net.Listener) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() {
		if err := address.Serve(ctx, l, h.WriteMetrics); err != nil {
			log.Error("metrics are not served any more", zap.Error(err))
		}
	})
	return func() {
		cancel()
		served.Wait()
	}
}
