// Package httpserve runs HTTP servers that let running requests finish before they end.
package httpserve

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"
)

// Until serves HTTP requests at a listener until ctx ends. Then it refuses new requests, gives running requests the
// time drain to finish, and aborts the others. The contexts of requests end when Until aborts them, unless
// s.BaseContext is set. Connection errors, which clients cause, are logged at debug level unless s.ErrorLog is set.
func Until(ctx context.Context, s *http.Server, l net.Listener, drain time.Duration, log *zap.Logger) error {
	base, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	if s.BaseContext == nil {
		s.BaseContext = func(net.Listener) context.Context { return base }
	}
	if s.ErrorLog == nil {
		var err error
		if s.ErrorLog, err = zap.NewStdLogAt(log, zap.DebugLevel); err != nil {
			return err
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	limited, cancel := context.WithTimeout(base, drain)
	defer cancel()
	err := s.Shutdown(limited)
	if errors.Is(err, context.DeadlineExceeded) {
		log.Warn("requests did not finish in time and are aborted", zap.Duration("time", drain))
		abort()
		err = s.Close()
	}
	<-ended
	return err
}
