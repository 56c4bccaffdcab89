//! The socket against a server that says exactly what a story needs.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message as Frame;

use super::PATIENCE;
use crate::{Closed, Message, Socket, Target};

/// A socket to a server that sends these frames once it was greeted with our flags, and then closes.
async fn hear(frames: Vec<Frame>) -> Socket {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = Target::new(format!("http://{}", listener.local_addr().unwrap()));
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        let first = socket.next().await.unwrap().unwrap().into_text().unwrap();
        assert!(first.contains("feature_flags") && first.contains("supports_preview_metadata"), "{first}");
        for frame in frames {
            socket.feed(frame).await.unwrap();
        }
        socket.close(None).await.unwrap();
        while socket.next().await.is_some_and(|frame| frame.is_ok()) {}
    });
    Socket::connect(&target, "agent 1/&", PATIENCE).await.unwrap()
}

/// Everything up to the end, and why it ended.
async fn all(mut socket: Socket) -> (Vec<Message>, Closed, u32) {
    let mut heard = Vec::new();
    loop {
        match tokio::time::timeout(Duration::from_secs(30), socket.next()).await.unwrap() {
            Ok(message) => heard.push(message),
            Err(closed) => return (heard, closed, socket.dropped()),
        }
    }
}

fn picture(format: u8, bytes: usize) -> Frame {
    let mut frame = vec![0, 0, 0, 1, 0, 0, 0, format];
    frame.resize(8 + bytes, 7);
    Frame::binary(frame)
}

#[tokio::test]
async fn large_results_are_kept_and_large_previews_are_not() {
    let (jpeg, png) = (1, 2);
    let frames = vec![picture(jpeg, 5 << 20), picture(png, 5 << 20), picture(jpeg, 100)];
    let (heard, closed, dropped) = all(hear(frames).await).await;
    let sizes = heard.iter().map(|message| match message {
        Message::Preview { bytes, .. } => bytes.len(),
        other => panic!("{other:?}"),
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [5 << 20, 100]);
    assert_eq!(dropped, 1);
    assert!(matches!(closed, Closed::ByServer(_)), "{closed}");
}

#[tokio::test]
async fn a_frame_beyond_all_bounds_closes_the_socket_and_is_not_kept() {
    let (heard, closed, _) = all(hear(vec![picture(2, 65 << 20), picture(2, 1)]).await).await;
    assert!(heard.is_empty());
    assert_eq!(closed, Closed::TooLarge);
}

#[tokio::test]
async fn some_nonsense_is_borne_and_nothing_but_nonsense_is_not() {
    let nonsense = |times| vec![Frame::text("{\"type\": 3}"); times];
    let (heard, closed, _) = all(hear(nonsense(19)).await).await;
    assert_eq!(heard.iter().filter(|message| matches!(message, Message::Malformed)).count(), 19);
    assert!(matches!(closed, Closed::ByServer(_)), "{closed}");
    let (_, closed, _) = all(hear(nonsense(30)).await).await;
    assert_eq!(closed, Closed::Malformed);
}
