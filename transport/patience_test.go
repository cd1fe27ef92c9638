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
	if _, err := openRemote(t, s.URL+"/r", Options{Retries: 3, Patience: 5 * time.Second}).Refs(t.Context(), nil); !errors.As(err, &limited) {
		t.Errorf("got %v", err)
	}
	s.set(status(503, nil, "upload-pack", 0))
	if _, err := openRemote(t, s.URL+"/r", Options{Retries: 1000, Patience: time.Second}).Refs(t.Context(), nil); !errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("patient for %v", took)
	}
}

func TestRefusalIsAMatterOfPermission(t *testing.T) {
	for _, err := range []error{ErrAuth, ErrForbidden} {
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%v is no fs.ErrPermission", err)
		}
	}
	if errors.Is(ErrAuth, ErrForbidden) {
		t.Error("no credentials and no right are the same")
	}
}
