"""Who is connected and who listens: device links, the firehose and the event feed."""
