package httpserve

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"go.uber.org/zap"
)

// TestEnd ends a server during a request that takes until the channel finish is closed or its context ends.
func TestEnd(t *testing.T) {
	for name, finishes := range map[string]bool{"a request that finishes": true, "a request that does not finish": false} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			begun, finish := make(chan struct{}), make(chan struct{})
			s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				close(begun)
				select {
				case <-finish:
					io.WriteString(w, "whole")
				case <-r.Context().Done():
				}
			})}
			drain := time.Minute
			if !finishes {
				drain = 10 * time.Millisecond
			}
			ctx, end := context.WithCancel(t.Context())
			defer end()
			result := make(chan error, 1)
			go func() { result <- Until(ctx, s, l, drain, zap.NewNop()) }()
			answer := make(chan string, 1)
			go func() {
				res, err := http.Get("http://" + l.Addr().String())
				if err != nil {
					answer <- "none"
					return
				}
				defer res.Body.Close()
				text, _ := io.ReadAll(res.Body)
				answer <- string(text)
			}()
			<-begun
			end()
			for { // wait until the listener is closed, although a request is running
				conn, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					break
				}
				conn.Close()
				time.Sleep(time.Millisecond)
			}
			want := "none"
			if finishes {
				want = "whole"
				close(finish)
			}
			if err := <-result; err != nil {
				t.Errorf("end of the server: %v", err)
			}
			if got := <-answer; got != want {
				t.Errorf("answer: got %q, want %q", got, want)
			}
		})
	}
}

func TestServerThatCannotServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := Until(t.Context(), &http.Server{}, l, time.Minute, zap.NewNop()); err == nil {
		t.Error("a closed listener serves")
	}
}
