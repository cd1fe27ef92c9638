package transport

import (
	"errors"
	"io/fs"
	"testing"
	"time"
)

func TestPatience(t *testing.T) {
	s, _ := webRepo(t)
	s.set(status(429, map[string]string{"Retry-After": "30"}, "upload-pack", 0))
	begun := time.Now()
	var limited RateLimited
	if _, err := openRemote(t, s.URL+"/r", Options{Retries: 3, Patience: 5 * time.Second}).Refs(t.Context(),
		nil); !errors.As(err, &limited) {
		t.Errorf("Refs with a Retry-After beyond the patience: got %v, want RateLimited", err)
	}
	s.set(status(503, nil, "upload-pack", 0))
	if _, err := openRemote(t, s.URL+"/r", Options{Retries: 1000, Patience: time.Second}).Refs(t.Context(),
		nil); !errors.Is(err, ErrUnreachable) {
		t.Errorf("Refs with many retries: got %v, want ErrUnreachable", err)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("both calls took %v", took)
	}
}

func TestRefusalIsAMatterOfPermission(t *testing.T) {
	for _, err := range []error{ErrAuth, ErrForbidden} {
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("error %v is not fs.ErrPermission", err)
		}
	}
	if errors.Is(ErrAuth, ErrForbidden) {
		t.Error("missing credentials and missing permission are the same error")
	}
}
