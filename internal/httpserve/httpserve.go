// Package httpserve runs HTTP servers that end in an orderly way.
package httpserve

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"
)

// Until answers requests at a listener until ctx ends. Then it refuses new requests, and gives those that are under way the time drain to
// finish. Their contexts end after that, unless s has a base context of its own. Failures of connections, which clients cause, are logged
// for debugging, unless s has a log of its own.
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
