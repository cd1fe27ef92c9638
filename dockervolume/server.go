package dockervolume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/clock"
)

const (
	// contentType is the type of all bodies (https://docs.docker.com/engine/extend/plugin_api).
	contentType = "application/vnd.docker.plugins.v1.2+json"
	maxRequest  = 1 << 20 // bytes
	// headerTime is the maximum time in which the header of a request has to arrive, and stopTime that for which the end of the server
	// waits for requests in progress.
	headerTime = 10 * time.Second
	stopTime   = 10 * time.Second
	// daemonTime is the maximum time for which a request is repeated because the daemon has died.
	daemonTime  = 5 * time.Second
	daemonPause = 50 * time.Millisecond
)

// request has the fields of all requests (https://docs.docker.com/engine/extend/plugins_volume).
type request struct {
	Name string
	ID   string // of the use by a container
	Opts map[string]string
}

// reply has the fields of all replies. Docker expects the field Err in every reply.
type reply struct {
	Mountpoint   string        `json:",omitempty"`
	Volume       *Volume       `json:",omitempty"`
	Volumes      []Volume      `json:",omitempty"`
	Implements   []string      `json:",omitempty"`
	Capabilities *capabilities `json:",omitempty"`
	Err          string
}

type capabilities struct{ Scope string }

// Handler returns the handler of the requests of Docker.
func (d *Driver) Handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(path string, do func(ctx context.Context, r request, out *reply) error) {
		mux.HandleFunc("POST /"+path, func(w http.ResponseWriter, r *http.Request) { d.answer(w, r, path, do) })
	}
	handle("Plugin.Activate", func(_ context.Context, _ request, out *reply) error {
		out.Implements = []string{"VolumeDriver"}
		return nil
	})
	handle("VolumeDriver.Capabilities", func(_ context.Context, _ request, out *reply) error {
		out.Capabilities = &capabilities{"local"}
		return nil
	})
	handle("VolumeDriver.Create", func(_ context.Context, r request, _ *reply) error { return d.Create(r.Name, r.Opts) })
	handle("VolumeDriver.Remove", func(ctx context.Context, r request, _ *reply) error { return d.Remove(ctx, r.Name) })
	handle("VolumeDriver.Mount", func(ctx context.Context, r request, out *reply) (err error) {
		out.Mountpoint, err = d.Mount(ctx, r.Name, r.ID)
		return err
	})
	handle("VolumeDriver.Unmount", func(ctx context.Context, r request, _ *reply) error { return d.Unmount(ctx, r.Name, r.ID) })
	handle("VolumeDriver.Path", func(ctx context.Context, r request, out *reply) (err error) {
		out.Mountpoint, err = d.Path(ctx, r.Name)
		return err
	})
	handle("VolumeDriver.Get", func(ctx context.Context, r request, out *reply) error {
		v, err := d.Get(ctx, r.Name)
		out.Volume = &v
		return err
	})
	handle("VolumeDriver.List", func(ctx context.Context, _ request, out *reply) (err error) {
		out.Volumes, err = d.List(ctx)
		return err
	})
	return mux
}

// answer carries out one request. Docker shows the text of Err to the user only if the status is an error too.
func (d *Driver) answer(w http.ResponseWriter, r *http.Request, path string, do func(context.Context, request, *reply) error) {
	var in request
	var out reply
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err == nil && len(text) > 0 {
		err = json.Unmarshal(text, &in)
	}
	start := time.Now()
	if err == nil {
		// A request is finished even if dockerd ends meanwhile, because the next dockerd does not know what was begun.
		ctx := context.WithoutCancel(r.Context())
		err = repeat(ctx, func() error {
			out = reply{}
			return do(ctx, in, &out)
		})
	}
	status := http.StatusOK
	if err != nil {
		out, status = reply{Err: textOf(err)}, http.StatusInternalServerError
		d.Log.Warn("request failed", zap.String("request", path), zap.String("volume", in.Name), zap.Error(err))
	} else {
		d.Log.Debug("request", zap.String("request", path), zap.String("volume", in.Name), zap.Duration("took", time.Since(start)))
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(out); err != nil {
		d.Log.Warn("send reply", zap.String("request", path), zap.Error(err))
	}
}

// repeat calls do again while the daemon is missing, for at most daemonTime: a daemon that is dying still accepts connections, and only
// after its end the next one is started.
func repeat(ctx context.Context, do func() error) error {
	for start := time.Now(); ; {
		err := do()
		if !errors.Is(err, control.ErrNoServer) || time.Since(start) > daemonTime || !clock.Wait(ctx, daemonPause) {
			return err
		}
	}
}

// textOf returns the text of an error with its hint, on one line.
func textOf(err error) string {
	e := control.AsError(err)
	if e.Hint == "" {
		return e.Error()
	}
	return e.Error() + " (" + e.Hint + ")"
}

// Serve answers requests at a socket until ctx ends.
func (d *Driver) Serve(ctx context.Context, socket string) error {
	l, err := listen(socket)
	if err != nil {
		return fmt.Errorf("serve volumes: %w", err)
	}
	s := &http.Server{Handler: d.Handler(), ReadHeaderTimeout: headerTime}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	d.Log.Info("serving volumes", zap.String("socket", socket), zap.String("dir", d.Dir))
	select {
	case err = <-ended:
		return fmt.Errorf("serve volumes: %w", err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	err = s.Shutdown(stopping)
	<-ended
	return err
}

// listen listens at a socket that only its owner can use. It replaces the socket that an earlier process has left, and returns an error
// if another process listens there.
func listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, err
	}
	conn, err := net.Dial("unix", socket)
	switch {
	case err == nil:
		conn.Close()
		return nil, fmt.Errorf("another process listens at %s", socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		if err := os.Remove(socket); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
