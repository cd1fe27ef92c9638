package certfile_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/certfile"
)

// files contains the paths of the files of a certificate for 127.0.0.1.
type files struct {
	t         *testing.T
	cert, key string
	writes    int
}

func newFiles(t *testing.T) *files {
	t.Parallel()
	dir := t.TempDir()
	return &files{t: t, cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
}

// pair returns a new self-signed certificate with its key.
func (f *files) pair(serial int64) (cert, key []byte) {
	f.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		f.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		f.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// write replaces a file. Each call sets another modification time.
func (f *files) write(path string, text []byte) {
	f.t.Helper()
	f.writes++
	at := time.Now().Add(time.Duration(f.writes) * time.Second)
	if err := errors.Join(os.WriteFile(path, text, 0o600), os.Chtimes(path, at, at)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *files) replace(serial int64) {
	f.t.Helper()
	cert, key := f.pair(serial)
	f.write(f.cert, cert)
	f.write(f.key, key)
}

func (f *files) want(c *certfile.Certificate, what string, serial int64) {
	f.t.Helper()
	got, err := c.Get(nil)
	if err != nil {
		f.t.Errorf("%s: %v", what, err)
		return
	}
	leaf, err := x509.ParseCertificate(got.Certificate[0])
	if err != nil || leaf.SerialNumber.Int64() != serial {
		f.t.Errorf("%s: got certificate %v, %v, want %d", what, leaf.SerialNumber, err, serial)
	}
}

// TestCertificateIsRenewed checks that a renewed certificate is used without a restart, and that the previous
// certificate is used while the files are being replaced.
func TestCertificateIsRenewed(t *testing.T) {
	f := newFiles(t)
	f.replace(1)
	c, err := certfile.Read(f.cert, f.key)
	if err != nil {
		t.Fatal(err)
	}
	f.want(c, "first certificate", 1)
	cert, key := f.pair(2)
	f.write(f.cert, cert)
	f.want(c, "new certificate with the old key", 1)
	f.write(f.key, key)
	f.want(c, "new certificate", 2)
	if err := os.Remove(f.cert); err != nil {
		t.Fatal(err)
	}
	f.want(c, "certificate whose file was removed", 2)
	f.write(f.cert, []byte("no certificate"))
	f.want(c, "file without a certificate", 2)
	f.replace(3)
	f.want(c, "certificate after that", 3)
}

func TestReadFails(t *testing.T) {
	f := newFiles(t)
	if _, err := certfile.Read(f.cert, f.key); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read of files that do not exist: got %v, want fs.ErrNotExist", err)
	}
	cert, _ := f.pair(1)
	_, key := f.pair(2)
	f.write(f.cert, cert)
	f.write(f.key, key)
	if _, err := certfile.Read(f.cert, f.key); err == nil {
		t.Error("read of a certificate with the key of another one: got nil, want an error")
	}
}

// TestRoots checks that a client that trusts the certificate in a file connects to a server with this certificate, and
// not to a server with another one.
func TestRoots(t *testing.T) {
	f := newFiles(t)
	f.replace(1)
	c, err := certfile.Read(f.cert, f.key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: c.Get})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler(), ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	address := listener.Addr().String()
	connect := func() error {
		roots, err := certfile.Roots(f.cert)
		if err != nil {
			return err
		}
		conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"})
		if err == nil {
			conn.Close()
		}
		return err
	}
	if err := connect(); err != nil {
		t.Errorf("connect with the certificate of the server: %v", err)
	}
	other, _ := f.pair(1)
	f.cert = filepath.Join(filepath.Dir(f.cert), "other.pem")
	f.write(f.cert, other)
	var unknown x509.UnknownAuthorityError
	if err := connect(); !errors.As(err, &unknown) {
		t.Errorf("connect with another certificate: got %v, want x509.UnknownAuthorityError", err)
	}
}

func TestRootsOfNoFile(t *testing.T) {
	f := newFiles(t)
	if roots, err := certfile.Roots(""); roots != nil || err != nil {
		t.Errorf(`roots of the file "": got %v, %v, want those of the system`, roots, err)
	}
	if _, err := certfile.Roots(f.cert); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("roots of a file that does not exist: got %v, want fs.ErrNotExist", err)
	}
	f.write(f.cert, []byte("no certificate"))
	if _, err := certfile.Roots(f.cert); err == nil {
		t.Error("roots of a file without certificates: got nil, want an error")
	}
}
