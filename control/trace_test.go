package control

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

func TestTraceIsAStream(t *testing.T) {
	f := newFake()
	socket := filepath.Join(t.TempDir(), "daemon.sock")
	events := []TraceEvent{
		{Time: time.Unix(1, 2).UTC(), PID: 3, Command: "a b", Op: "read", Path: "p/\xc3\xa4", Offset: 4, Size: 5,
			Source: TraceFetched, Blobs: 6, Bytes: 7, Wait: 8},
		{Op: "rename", Path: "a", To: "b", Source: TraceHit, Error: "EEXIST"},
	}
	left := make(chan error, 1)
	f.trace = func(ctx context.Context, r TraceRequest, emit func(Trace) error) error {
		if r.Dir == "/gone" {
			return &Error{Code: ExitNotMounted, Cause: "not mounted"}
		}
		if err := emit(Trace{PID: 9}); err != nil {
			return err
		}
		if err := emit(Trace{PID: 9, Lost: 1, Events: events}); err != nil {
			return err
		}
		if r.All {
			<-ctx.Done()
			left <- ctx.Err()
			return ctx.Err()
		}
		return nil
	}
	_, ended := serve(t, socket, f)
	c := &Client{socket: socket}
	var got []Trace
	each := func(x Trace) error { got = append(got, x); return nil }
	if err := c.Trace(t.Context(), TraceRequest{Dir: "/m"}, each); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].PID != 9 || got[1].Lost != 1 || !reflect.DeepEqual(got[1].Events, events) {
		t.Errorf("trace messages: got %+v", got)
	}
	var e *Error
	if err := c.Trace(t.Context(), TraceRequest{Dir: "/gone"}, each); !errors.As(err, &e) || e.Code != ExitNotMounted {
		t.Error(err)
	}
	if err := c.Trace(t.Context(), TraceRequest{Dir: "m"}, each); !errors.As(err, &e) || e.Code != ExitUsage {
		t.Error(err)
	}
	// A client that disconnects ends its stream.
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.Trace(ctx, TraceRequest{Dir: "/m", All: true}, func(x Trace) error {
		if x.Lost > 0 {
			cancel()
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := await(t, left); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	own := errors.New("no more")
	if err := c.Trace(t.Context(), TraceRequest{Dir: "/m", All: true}, func(x Trace) error {
		if x.Lost > 0 {
			return own
		}
		return nil
	}); !errors.Is(err, own) {
		t.Error(err)
	}
	await(t, left)
	select {
	case <-ended:
		t.Error("the server has ended")
	default:
	}
}
